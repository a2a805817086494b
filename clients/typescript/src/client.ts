/**
 * A thin client for the HTTP service of ACMS: every operation of its OpenAPI document, typed, and the verbs of a
 * conversation. It needs `fetch` and nothing else: Node 20 or newer, Deno, Bun, workers and browsers have it.
 */

import type { components, paths } from "./schema.js";

export type { components, paths } from "./schema.js";

/** A noun of the service by its name, as `Schema<"Recalled">`. */
export type Schema<Name extends keyof components["schemas"]> = components["schemas"][Name];

type Method = "get" | "post" | "put" | "patch" | "delete";
type Operation<M extends Method, P> = P extends keyof paths ? (M extends keyof paths[P] ? paths[P][M] : never) : never;

/** The paths that an HTTP method is for. */
export type PathsOf<M extends Method> = {
  [P in keyof paths]: paths[P] extends Record<M, { responses: unknown }> ? P : never;
}[keyof paths];

type Parameters<O, In extends "path" | "query" | "header"> = O extends { parameters: infer All }
  ? In extends keyof All
    ? Exclude<All[In], undefined>
    : never
  : never;
type Optional<T> = { [Name in keyof T as undefined extends T[Name] ? never : Name]: T[Name] } extends Record<string, never>
  ? true
  : false;
type Given<Name extends string, T> = [T] extends [never]
  ? unknown
  : Optional<T> extends true
    ? { [N in Name]?: T }
    : { [N in Name]: T };
type Body<O> = O extends { requestBody: { content: infer C } }
  ? { body: C[keyof C] }
  : O extends { requestBody?: { content: infer C } }
    ? { body?: C[keyof C] }
    : unknown;

/** What an operation takes: `path`, `query` and `header` parameters, a `body`, and a signal that ends the request. */
export type Init<O> = Given<"path", Parameters<O, "path">> &
  Given<"query", Parameters<O, "query">> &
  Given<"header", Parameters<O, "header">> &
  Body<O> & { signal?: AbortSignal };

type Success = 200 | 201 | 202 | 204;
type Content<R> = R extends { content: infer C } ? C[keyof C] : undefined;

/** What an operation answers when it did what it was asked for. */
export type Answer<O> = O extends { responses: infer R } ? Content<R[keyof R & Success]> : never;

/** The service refused, or could not do, what it was asked for: its problem document (RFC 9457). */
export class AcmsError extends Error {
  override readonly name = "AcmsError";
  /** For programs, as "PRECONDITION"; "UNREADABLE" when the answer was no problem document. */
  readonly code: string;
  readonly status: number;
  /** Whether the same request may succeed later; `retryAfter` seconds from now where the service says so. */
  readonly retryable: boolean;
  readonly retryAfter: number | undefined;
  /** The fields at fault, and why. */
  readonly errors: readonly { field: string; message: string }[];
  /** What to do about it. */
  readonly options: readonly string[];
  readonly requestId: string | undefined;

  constructor(status: number, problem: Partial<Schema<"Problem">>, retryAfter?: number) {
    super(problem.detail ?? problem.title ?? `the service answered with status ${status}`);
    this.status = status;
    this.code = problem.code ?? "UNREADABLE";
    this.retryable = problem.retryable ?? status >= 500;
    this.retryAfter = retryAfter;
    this.errors = problem.errors ?? [];
    this.options = problem.options ?? [];
    this.requestId = problem.requestId;
  }
}

export interface Options {
  /** A key that `acms keys create` made; a service on this machine alone may need none. */
  key?: string;
  /** In place of the global one. */
  fetch?: typeof fetch;
  /** Milliseconds after which a request is given up; 30,000 by default. */
  timeout?: number;
}

/** A service at an address, such as `http://127.0.0.1:8000`. */
export class Client {
  readonly #base: string;
  readonly #options: Options;

  constructor(url: string, options: Options = {}) {
    this.#base = url.replace(/\/+$/, "");
    this.#options = options;
  }

  /**
   * Ask for an operation by its method and path, and return what it answers; `AcmsError` when the service refuses.
   *
   * Nothing is repeated: `error.retryable` says when that may help, and an `Idempotency-Key` makes it safe.
   */
  async request<M extends Method, P extends PathsOf<M>>(
    method: M,
    path: P,
    ...[init]: Record<string, never> extends Init<Operation<M, P>>
      ? [init?: Init<Operation<M, P>>]
      : [init: Init<Operation<M, P>>]
  ): Promise<Answer<Operation<M, P>>> {
    const given = (init ?? {}) as Untyped;
    const headers = new Headers({ accept: "application/json" });
    for (const [name, value] of Object.entries(given.header ?? {})) {
      if (value !== undefined) headers.set(name, String(value));
    }
    if (this.#options.key !== undefined) headers.set("authorization", `Bearer ${this.#options.key}`);
    const raw = typeof given.body === "string";
    if (given.body !== undefined && !raw) headers.set("content-type", "application/json");
    const limit = AbortSignal.timeout(this.#options.timeout ?? 30_000);
    const reply = await (this.#options.fetch ?? fetch)(this.#base + filled(String(path), given), {
      method: method.toUpperCase(),
      headers,
      body: given.body === undefined ? null : raw ? (given.body as string) : JSON.stringify(given.body),
      signal: given.signal ? AbortSignal.any([given.signal, limit]) : limit,
    });
    if (!reply.ok) throw await refused(reply);
    const kind = reply.headers.get("content-type") ?? "";
    const answer = reply.status === 204 ? undefined : kind.includes("json") ? await reply.json() : await reply.text();
    return answer as Answer<Operation<M, P>>;
  }

  /** Yield everything that a list has, page by page. */
  async *list<P extends PathsOf<"get">>(
    path: P,
    init: Init<Operation<"get", P>>,
  ): AsyncGenerator<Answer<Operation<"get", P>> extends { data: (infer T)[] } ? T : never> {
    const given = { ...(init as Untyped) };
    for (;;) {
      const page = (await this.request("get", path, given as never)) as { data: never[]; nextCursor?: unknown };
      yield* page.data;
      if (page.nextCursor === null || page.nextCursor === undefined) return;
      given.query = { ...given.query, cursor: page.nextCursor };
    }
  }

  /** Return the conversation of a name, which is made when there is none. */
  async conversation(key: string, namespace = "default"): Promise<Conversation> {
    const made = await this.request("post", "/api/v1/contexts", { body: { key, namespace } });
    return new Conversation(this, made.data.id);
  }
}

type Message = Schema<"AppendBody">["messages"][number];
type Without<Name extends keyof components["schemas"], Field> = Omit<Schema<Name>, Field & keyof Schema<Name>>;

/** The verbs of one conversation; all others are `client.request` with its `id`. */
export class Conversation {
  constructor(
    readonly client: Client,
    readonly id: string,
  ) {}

  get #path() {
    return { context_id: this.id };
  }

  /** Append messages, ours or as a provider writes them, all or none; with a key the request has its effect once. */
  async append(messages: Message[], key?: string): Promise<Schema<"StoredMessage">[]> {
    const header = key === undefined ? {} : { "Idempotency-Key": key };
    const path = "/api/v1/contexts/{context_id}/messages";
    return (await this.client.request("post", path, { path: this.#path, header, body: { messages } })).data;
  }

  /** Return what the model should see for a query, within a budget. */
  async recall(query: string, more: Without<"RecallBody", "query"> = {}): Promise<Schema<"Recalled">> {
    const path = "/api/v1/contexts/{context_id}/recall";
    return (await this.client.request("post", path, { path: this.#path, body: { ...more, query } })).data;
  }

  /** Return chat messages for a provider: the newest, and what the past says about a query. */
  async chat(query: string, budget: number): Promise<Answer<Operation<"post", ChatPath>>["data"]> {
    const path: ChatPath = "/api/v1/contexts/{context_id}/chat";
    return (await this.client.request("post", path, { path: this.#path, body: { query, budget } })).data;
  }

  /** Yield its history, oldest first. */
  history(): AsyncGenerator<Schema<"HistoryEntry">> {
    return this.client.list("/api/v1/contexts/{context_id}/history", { path: this.#path });
  }
}

type ChatPath = "/api/v1/contexts/{context_id}/chat";

interface Untyped {
  path?: Record<string, unknown>;
  query?: Record<string, unknown>;
  header?: Record<string, unknown>;
  body?: unknown;
  signal?: AbortSignal;
}

/** Quote a name as one step of a path. "." and ".." are places there, also when they are quoted: `fetch` resolves them. */
function step(name: string, value: string): string {
  if (value === "" || value === "." || value === "..") {
    throw new TypeError(`${name}: no address can hold ${JSON.stringify(value)}`);
  }
  return encodeURIComponent(value);
}

function filled(path: string, given: Untyped): string {
  const place = path.replace(/\{(\w+)\}/g, (_, name: string) => step(name, String(given.path?.[name] ?? "")));
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(given.query ?? {})) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null) query.append(name, String(one));
    }
  }
  return query.size > 0 ? `${place}?${query}` : place;
}

async function refused(reply: Response): Promise<AcmsError> {
  const after = Number(reply.headers.get("retry-after") ?? Number.NaN);
  const problem: unknown = await reply.json().catch(() => ({}));
  const told = typeof problem === "object" && problem !== null ? problem : {};
  return new AcmsError(reply.status, told, Number.isNaN(after) ? undefined : after);
}
