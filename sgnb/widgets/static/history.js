// The lists of a fold that only grow: steps, requests, figures, marks, prompts. Pure: no page, no clock, no comm. Records are
// those of sgnb/messages/. Made and fed by tape.js; what is where at one moment is fold.js's.

import { settingsOf } from "./fold.js";

/** The lists that only grow, bounded: what happened when. */
export class History {
  constructor({ steps = 60000, rows = 600000, requests = 4000, figures = 2600, marks = 20000 } = {}) {
    this.limits = { steps, rows, requests, figures, marks };
    this.steps = []; // StepEvents, oldest first
    this.requests = new Map(); // rid → record, in order of arrival
    this.figures = []; // EngineStats, oldest first
    this.marks = []; // {time, kind, rid, node, tokens}: evict, retract, finish, abort, flush
    this.prompts = []; // records of requests that were matched, oldest first; at most 200
    this.knobs = []; // KnobEvents, oldest first
    this.firstPolicy = ""; // the policy before the first switch among them; "" when that is not known
    this.rows = 0;
    this.version = 0;
    this.odd = false; // an event says something else of a request than an earlier one did
  }

  apply(event) {
    this.version++;
    switch (event.t) {
      case "step":
        this.steps.push(event);
        this.rows += event.rows.length;
        while (this.steps.length > this.limits.steps || this.rows > this.limits.rows) {
          this.rows -= this.steps.shift().rows.length;
        }
        for (const note of event.notes ?? []) this._note(event, note);
        break;
      case "request":
        this._request(event);
        break;
      case "stats":
        if (event.time - (this.figures.at(-1)?.time ?? 0) >= 0.2) this.figures.push(event);
        if (this.figures.length > this.limits.figures) this.figures.shift();
        break;
      case "knob":
        this.knobs.push(event);
        if (this.knobs.length > 1000) this.knobs.shift();
        break;
      case "radix":
        if (event.kind === "evict" || event.kind === "flush") {
          const last = this.marks.at(-1);
          const rid = event.for_rid ?? "";
          if (last && last.kind === event.kind && last.rid === rid && event.time - last.time < 0.01) {
            last.tokens += event.length;
            last.nodes++;
          } else {
            this._mark({ time: event.time, kind: event.kind, rid, node: event.node, tokens: event.length, nodes: 1, policy: event.policy ?? "" });
          }
        }
        break;
    }
  }

  /** Let go what lies before `time`. Requests stay: nodes of the tree are called after them, and they are few. */
  forgetBefore(time) {
    const old = list => {
      const first = list.findIndex(one => one.time >= time);
      return first < 0 ? list.length : first;
    };
    for (const { rows } of this.steps.splice(0, old(this.steps))) this.rows -= rows.length;
    this.figures.splice(0, old(this.figures));
    this.marks.splice(0, old(this.marks));
    for (const { knobs } of this.knobs.splice(0, old(this.knobs))) this.firstPolicy = knobs.schedule_policy ?? this.firstPolicy;
  }

  _mark(mark) {
    this.marks.push(mark);
    if (this.marks.length > this.limits.marks) this.marks.splice(0, 1000);
  }

  _note(step, note) {
    const record = this.requests.get(note.rid);
    if (record && note.what === "deferred") record.waits = { ...note, time: step.time, step: step.step };
  }

  /** The record of a request; made at its first event. */
  _record(rid, label, client, time) {
    let record = this.requests.get(rid);
    if (!record) {
      record = { rid, label, client, queued: time, turns: [], waits: null, match: null, state: "queued" };
      Object.assign(record, { prompt: 0, cached: 0, completed: 0, finished: 0, reason: "", first: 0 });
      this.requests.set(rid, record);
      if (this.requests.size > this.limits.requests) {
        for (const [old, { finished }] of this.requests) {
          if (finished || this.requests.size > 2 * this.limits.requests) this.requests.delete(old);
          if (this.requests.size <= this.limits.requests) break;
        }
      }
    }
    return record;
  }

  _request(event) {
    const { rid, state, time } = event;
    const record = this._record(rid, event.label ?? {}, event.client, time);
    if (!sameRequest(record, event)) this.odd = true;
    record.state = state;
    record.prompt = event.prompt_tokens ?? record.prompt;
    record.completed = event.completion_tokens ?? record.completed;
    if (state === "admitted") {
      record.turns.push({ from: time, to: 0, end: "", why: "", match: event.match ?? null });
      if (!record.match && event.match) {
        record.match = event.match;
        record.cached = event.cached_tokens ?? 0;
        record.admitted = time;
        this.prompts.push(record);
        if (this.prompts.length > 200) this.prompts.shift();
      }
    } else if (state === "compiling" || state === "compiled") {
      record[state] = time;
      if (event.reason) record.compilingWords = event.reason;
    } else if (state === "first_token") {
      record.twice = event.duplicate_tokens ?? 0;
      record.first = record.first || time;
    } else if (state === "retracted" || state === "finished") {
      const turn = record.turns.at(-1);
      if (turn && !turn.to) Object.assign(turn, { to: time, end: state === "finished" ? event.reason : state, why: event.reason ?? "" });
      if (state === "finished") Object.assign(record, { finished: time, reason: event.reason ?? "" });
      const kind = state === "retracted" ? "retract" : event.reason === "abort" ? "abort" : "finish";
      this._mark({ time, kind, rid, node: 0, tokens: 0, nodes: 0 });
    }
  }

  /** Requests of a snapshot: those that lived before the first event. */
  fromSnapshot(snapshot) {
    const settings = settingsOf(snapshot);
    if (!this.knobs.some(event => event.knobs.schedule_policy !== undefined)) this.firstPolicy = settings.schedule_policy ?? "";
    for (const req of snapshot.requests) {
      const record = this._record(req.rid, req.label ?? {}, req.client, req.time_queued);
      record.state = req.state === "waiting" ? "queued" : "admitted";
      Object.assign(record, { prompt: req.prompt_tokens, cached: req.cached_tokens, completed: req.completion_tokens });
      if (req.time_admitted && !record.turns.length) record.turns.push({ from: req.time_admitted, to: 0, end: "", why: "", match: req.match });
      if (req.match && !record.match) {
        Object.assign(record, { match: req.match, admitted: req.time_admitted });
        this.prompts.push(record);
      }
    }
    this.prompts.splice(0, this.prompts.length - 200);
  }
}

/** Whether an event repeats what is known of its request: whose it is, its name, its prompt, what was reused of it. */
function sameRequest(record, event) {
  const { label = {} } = event;
  const known = record.label ?? {};
  if (["cell", "branch", "name", "line"].some(field => (known[field] ?? "") !== (label[field] ?? ""))) return false;
  if (record.client !== event.client) return false;
  if (record.prompt && event.prompt_tokens && record.prompt !== event.prompt_tokens) return false;
  return !record.match || event.cached_tokens === undefined || record.cached === event.cached_tokens;
}

/** What people call a request: `<cell>.<branch> <variable>`. */
export function nameOf(record) {
  const { cell = "", branch = "", name = "" } = record?.label ?? {};
  const place = [cell, branch].filter(Boolean).join(".");
  return [place, name].filter(Boolean).join(" ") || record?.rid || "–";
}

/** The same of a request by its id, as far as a History knows it. */
export function nameIn(history, rid) {
  return nameOf(history.requests.get(rid) ?? { rid });
}

/** The request that a search means: the first whose name begins so, else the first that has it in its name; or null. */
export function requestCalled(history, text) {
  const wanted = text.toLowerCase();
  const named = [...history.requests.values()].map(record => [nameOf(record).toLowerCase(), record]);
  const found = named.find(([name]) => name.startsWith(wanted)) ?? named.find(([name]) => name.includes(wanted));
  return found?.[1] ?? null;
}
