/** The client against a real service, whose address is in ACMS_URL. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { AcmsError, Client, type Schema } from "../src/client.js";

const url = process.env["ACMS_URL"] ?? "http://127.0.0.1:8000";
const client = new Client(`${url}/`);

test("a conversation is kept, recalled and written for a model", async () => {
  const talk = await client.conversation(`typescript-${Date.now()}`);
  const stored = await talk.append([
    { role: "user", content: "Which database should the orders service use?" },
    { role: "assistant", content: "Decision: PostgreSQL 18, because we need transactions." },
  ]);
  assert.deepEqual(stored.map((one) => one.version), [1, 2]);
  const found: Schema<"Recalled"> = await talk.recall("database of orders", { tokenBudget: 500 });
  assert.ok(found.items.some((item) => item.content.includes("PostgreSQL")));
  const messages = await talk.chat("database of orders", 2_000);
  assert.equal(messages.messages.length, 2);
  assert.deepEqual(messages.sources, stored.map((one) => [one.id]));
});

test("a message of a provider is taken as it is, and a key has its effect once", async () => {
  const talk = await client.conversation(`typescript-${Date.now()}-keys`);
  const message = { role: "user", content: [{ type: "text", text: "Hello from Claude's format." }] };
  const [first] = await talk.append([message], "once");
  const [again] = await talk.append([message], "once");
  assert.equal(first?.id, again?.id);
});

test("a list is read over all its pages", async () => {
  const talk = await client.conversation(`typescript-${Date.now()}-pages`);
  await talk.append(Array.from({ length: 7 }, (_, n) => ({ role: "user", content: `Line ${n}.` })));
  const path = { context_id: talk.id };
  const paged = client.list("/api/v1/contexts/{context_id}/history", { path, query: { limit: 3 } });
  const versions: number[] = [];
  for await (const entry of paged) versions.push(entry.version);
  assert.deepEqual(versions, [1, 2, 3, 4, 5, 6, 7]);
  let lines = 0;
  for await (const _ of talk.history()) lines += 1;
  assert.equal(lines, 7);
});

test("what the service refuses is an error that says why", async () => {
  const talk = await client.conversation(`typescript-${Date.now()}-errors`);
  const refused = await talk.recall("x", { tokenBudget: -1 }).catch((error: unknown) => error);
  assert.ok(refused instanceof AcmsError);
  assert.equal(refused.status, 400);
  assert.equal(refused.code, "VALIDATION");
  assert.deepEqual(refused.errors.map((one) => one.field), ["tokenBudget"]);
  assert.ok(refused.requestId);
  const path = "/api/v1/contexts/{context_id}/entries/{entry_id}";
  const [said] = await talk.append([{ role: "user", content: "The port is 80." }]);
  const place = { context_id: talk.id, entry_id: said?.id ?? "" };
  const stale = client.request("patch", path, { path: place, body: { content: "81", sha256: "0".repeat(64) } });
  await assert.rejects(stale, (error: AcmsError) => error.code === "PRECONDITION" && !error.retryable);
});

test("a name that no address can hold is refused before anything is sent", async () => {
  const talk = await client.conversation(`typescript-${Date.now()}-names`);
  const path = "/api/v1/contexts/{context_id}/tags/{name}";
  for (const name of ["", ".", ".."]) {
    const place = { context_id: talk.id, name };
    await assert.rejects(client.request("delete", path, { path: place }), /name: no address can hold/);
  }
  const whole = "/api/v1/contexts/{context_id}";
  const found = await client.request("get", whole, { path: { context_id: talk.id } });
  assert.equal(found.data.id, talk.id);
});

test("a request ends when it is told to, or takes too long", async () => {
  await assert.rejects(client.request("get", "/health", { signal: AbortSignal.abort() }));
  const slow: typeof fetch = (_, init) =>
    new Promise((_resolve, reject) => init?.signal?.addEventListener("abort", () => reject(init.signal?.reason)));
  const alive = setTimeout(() => undefined, 5_000);
  await assert.rejects(new Client(url, { fetch: slow, timeout: 20 }).request("get", "/health"), /timeout/i);
  clearTimeout(alive);
});

test("a wrong path or a missing field is no program", () => {
  // @ts-expect-error: there is no such operation
  void (() => client.request("get", "/api/v1/nothing"));
  // @ts-expect-error: the body must say what is asked
  void (() => client.request("post", "/api/v1/contexts/{context_id}/recall", { path: { context_id: "c" }, body: {} }));
  // @ts-expect-error: the path has a parameter
  void (() => client.request("get", "/api/v1/contexts/{context_id}"));
});
