"""The providers' documented rules, checked without anything of ACMS: lists of violations, [] for a valid payload."""

# ruff: noqa: E501, SIM102
from __future__ import annotations

import re

NAME = re.compile("^[a-zA-Z0-9_-]{1,64}$")
ANAME = re.compile("^[a-zA-Z0-9_-]{1,128}$")


def wf(s):
    try:
        s.encode("utf-8")
        return True
    except UnicodeEncodeError:
        return False


def walk(v, p=""):
    if isinstance(v, str):
        if not wf(v):
            yield f"{p}: lone surrogate"
        if "\x00" in v:
            yield f"{p}: NUL"
    elif isinstance(v, dict):
        for k, x in v.items():
            yield from walk(k, p)
            yield from walk(x, f"{p}.{k}")
    elif isinstance(v, list):
        for i, x in enumerate(v):
            yield from walk(x, f"{p}[{i}]")


def chat(pl):
    e = []
    ms = pl.get("messages")
    if not ms:
        return ["messages empty"]
    open_ = None
    for i, m in enumerate(ms):
        r = m.get("role")
        if r not in ("system", "developer", "user", "assistant", "tool", "function"):
            e.append(f"{i}: role {r}")
        if open_:
            if r != "tool":
                e.append(f"{i}: {r} while calls {sorted(open_)[:2]} unanswered")
                open_ = None
        if r == "tool":
            t = m.get("tool_call_id")
            if not open_ or t not in open_:
                e.append(f"{i}: orphan tool result {t}")
            else:
                open_.discard(t)
            c = m.get("content")
            if c is None:
                e.append(f"{i}: tool content null")
            if isinstance(c, list) and any(p.get("type") != "text" for p in c):
                e.append(f"{i}: non-text part in tool message")
        if r == "assistant":
            tc = m.get("tool_calls")
            if tc is not None and (not tc):
                e.append(f"{i}: empty tool_calls")
            ids = [c["id"] for c in tc or []]
            if len(set(ids)) < len(ids):
                e.append(f"{i}: dup ids")
            for c in tc or []:
                if c.get("type") == "function":
                    if not NAME.match(c["function"]["name"]):
                        e.append(f"{i}: bad name {c['function']['name']!r}")
                    if not isinstance(c["function"]["arguments"], str):
                        e.append(f"{i}: arguments no str")
                if len(c["id"]) > 64 and False:
                    e.append(f"{i}: id too long")
            if not tc and (not m.get("content")) and (not m.get("refusal")):
                e.append(f"{i}: empty assistant")
            open_ = set(ids) or None
            c = m.get("content")
            if isinstance(c, list) and any(p.get("type") not in ("text", "refusal") for p in c):
                e.append(f"{i}: assistant part {[p.get('type') for p in c]}")
        if r in ("system", "user", "developer"):
            c = m.get("content")
            if not c:
                e.append(f"{i}: empty {r}")
            if isinstance(c, list):
                for p in c:
                    if p.get("type") == "text" and (not p.get("text")):
                        e.append(f"{i}: empty text part")
                    if r != "user" and p.get("type") != "text":
                        e.append(f"{i}: {p.get('type')} in {r}")
        n = m.get("name")
        if n is not None and (not re.match("^[^\\s<|\\\\/>]{1,64}$", n)):
            e.append(f"{i}: bad participant name {n!r}")
    if open_:
        e.append(f"end: open calls {sorted(open_)[:3]}")
    return e + list(walk(pl))[:5]


PAIRS = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "computer_call": "computer_call_output",
    "tool_search_call": "tool_search_output",
}
OUT = {v: k for k, v in PAIRS.items()}


def responses(pl):
    e = []
    it = pl.get("input")
    if not it:
        return ["input empty"]
    if isinstance(it, str):
        return []
    opened = {}
    closed = set()
    approvals = {}
    ids = set()
    for i, x in enumerate(it):
        t = x.get("type", "message")
        if x.get("id"):
            if x["id"] in ids:
                e.append(f"{i}: duplicate item id {x['id']}")
            ids.add(x["id"])
        if t == "message":
            r = x.get("role")
            if r not in ("system", "developer", "user", "assistant"):
                e.append(f"{i}: role {r}")
            c = x.get("content")
            if not c:
                e.append(f"{i}: empty {r} message")
            if isinstance(c, list):
                for p in c:
                    want = (
                        ("output_text", "refusal")
                        if r == "assistant"
                        else ("input_text", "input_image", "input_file", "input_audio")
                    )
                    if p.get("type") not in want:
                        e.append(f"{i}: part {p.get('type')} in {r}")
        elif t in PAIRS:
            cid = x.get("call_id")
            if not cid and t != "tool_search_call":
                e.append(f"{i}: {t} without call_id")
            if cid in opened or cid in closed:
                e.append(f"{i}: call_id {cid} again")
            opened[cid] = (i, t)
            if t == "function_call" and (not NAME.match(x.get("name", ""))):
                e.append(f"{i}: bad name {x.get('name')!r}")
            if cid and len(cid) > 64:
                e.append(f"{i}: call_id len {len(cid)}")
        elif t in OUT:
            cid = x.get("call_id")
            if cid not in opened:
                e.append(f"{i}: {t} {cid} without its call before it")
            else:
                if opened[cid][1] != OUT[t]:
                    e.append(f"{i}: {t} answers a {opened[cid][1]}")
                del opened[cid]
                closed.add(cid)
        elif t == "mcp_approval_request":
            approvals[x.get("id")] = i
        elif t == "mcp_approval_response":
            if x.get("approval_request_id") not in approvals:
                e.append(f"{i}: approval response without request")
        elif t == "reasoning":
            nxt = it[i + 1] if i + 1 < len(it) else None
            if nxt is None:
                e.append(f"{i}: reasoning last")
            elif nxt.get("type", "message") == "message" and nxt.get("role") != "assistant":
                e.append(
                    f"{i}: reasoning {x.get('id')} followed by {nxt.get('role')} message (required following item missing)"
                )
            elif nxt.get("type", "").endswith("_output"):
                e.append(f"{i}: reasoning followed by {nxt['type']}")
    for cid, (i, t) in opened.items():
        if t != "tool_search_call":
            e.append(f"{i}: {t} {cid} has no output")
    return e + list(walk(pl))[:5]


SRV = (
    "web_search_tool_result",
    "web_fetch_tool_result",
    "code_execution_tool_result",
    "bash_code_execution_tool_result",
    "text_editor_code_execution_tool_result",
    "mcp_tool_result",
    "tool_search_tool_result",
    "advisor_tool_result",
)


def anthropic(pl):
    e = []
    ms = pl.get("messages")
    if not ms:
        return ["messages empty"]
    if ms[0]["role"] != "user":
        e.append("first not user")
    prev = None
    pend = {}
    seen = set()
    srv = set()
    for i, m in enumerate(ms):
        r = m["role"]
        c = m["content"]
        bl = [{"type": "text", "text": c}] if isinstance(c, str) else c
        if not bl:
            e.append(f"{i}: empty content")
        if r == "system":
            prev = r
            continue
        if r == prev:
            pass
        res = [b for b in bl if b["type"] == "tool_result"]
        if pend:
            got = {b["tool_use_id"] for b in res}
            if r != "user" or got != set(pend):
                e.append(
                    f"{i}: tool_use {sorted(set(pend) - got)[:2]} without result; extra {sorted(got - set(pend))[:2]}"
                )
            lead = [b["type"] for b in bl]
            if res and "tool_result" in lead and (lead.index("tool_result") != 0):
                e.append(f"{i}: tool_result not first")
        elif res:
            e.append(f"{i}: orphan tool_result {[b['tool_use_id'] for b in res][:2]}")
        pend = {}
        for j, b in enumerate(bl):
            t = b["type"]
            if t == "text" and (not b["text"].strip()):
                e.append(f"{i}.{j}: blank text")
            if t == "tool_use":
                if r != "assistant":
                    e.append(f"{i}.{j}: tool_use of {r}")
                if b["id"] in seen:
                    e.append(f"{i}.{j}: tool_use ids must be unique {b['id']}")
                seen.add(b["id"])
                pend[b["id"]] = 1
                if not ANAME.match(b["name"]):
                    e.append(f"{i}.{j}: bad name {b['name']!r}")
                if not ANAME.match(b["id"]):
                    e.append(f"{i}.{j}: bad id {b['id'][:40]!r}")
                if not isinstance(b["input"], dict):
                    e.append(f"{i}.{j}: input no object")
            if t == "thinking" and (not b.get("signature")):
                e.append(f"{i}.{j}: thinking without signature")
            if t in ("thinking", "redacted_thinking") and r != "assistant":
                e.append(f"{i}.{j}: thinking of {r}")
            if t in ("thinking", "redacted_thinking") and j == len(bl) - 1:
                e.append(f"{i}.{j}: final block thinking")
            if t in ("server_tool_use", "mcp_tool_use"):
                srv.add(b["id"])
            if t in SRV:
                if b["tool_use_id"] not in srv:
                    e.append(f"{i}.{j}: {t} orphan")
                else:
                    srv.discard(b["tool_use_id"])
            if t == "tool_result":
                cc = b.get("content")
                if isinstance(cc, list):
                    for x in cc:
                        if x["type"] == "text" and (not x["text"]):
                            e.append(f"{i}.{j}: empty text in tool_result")
        if r == "assistant" and i == len(ms) - 1:
            last = bl[-1]
            if last["type"] == "text" and last["text"] != last["text"].rstrip():
                e.append(f"{i}: final assistant trailing whitespace")
        prev = r
    if pend:
        e.append(f"end: open tool_use {sorted(pend)[:2]}")
    if srv:
        e.append(f"server tool without result {sorted(srv)[:2]}")
    return e + list(walk(pl))[:5]
