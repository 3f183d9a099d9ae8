// The batch of the timeline's picture, as an engine would tell it: chunks, forks, a retraction, an abort, a policy switch.

import { Script } from "./scenario.mjs";

/** Requests of four cells around 600 ms of steps; `far` seconds of quiet work before them. */
export function batch({ far = 50 } = {}) {
  const s = new Script({ slots: 16384 });
  let used = 3000;
  const label = { "c1.v": ["7", "", "verdict"], "c1.a0": ["12", "0", "label"], "c1.a1": ["12", "1", "label"], "c1.a2": ["12", "2", "label"], "c1.a3": ["12", "3", "label"] };
  Object.assign(label, { "c1.s": ["13", "", "summary"], "c1.x": ["14", "", "extract"], "c1.t0": ["15", "0", "tip"], "c1.t1": ["15", "1", "tip"], "c1.r": ["16", "", "reply"], "c1.w": ["17", "", "answer"] });
  const state = (rid, word, more = {}) => s.state(rid, ...label[rid], word, more);
  const queue = (rid, prompt) => state(rid, "queued", { prompt_tokens: prompt });
  const admit = (rid, prompt, matched) => state(rid, "admitted", { prompt_tokens: prompt, cached_tokens: matched, match: { matched, node: 0, cause: matched ? "short" : "cold" } });
  const old = s.insert(1, "a prompt of long ago", 212);
  s.flush().figures(used);
  let at = 0;
  const step = (rows, { notes = [], forward, under = true, planned = 0.0011 } = {}) => {
    const tokens = rows.reduce((sum, row) => sum + row.tokens, 0);
    const forward_seconds = forward ?? 0.0082 + tokens * 0.000035;
    s.put({
      t: "step", step: ++s.step, mode: rows.every(row => row.kind === "decode") ? "decode" : rows.some(row => row.kind === "decode") ? "mixed" : "extend",
      rows, notes, schedule_seconds: planned, forward_seconds, sample_seconds: 0.0005, process_seconds: 0.0004, exposed_host_seconds: under ? 0 : 0.0011,
      schedule_under: under ? s.step - 1 : 0, free: 700, evictable: 336, running: rows.length, queued: notes.length, new_token_ratio: 0.43,
    });
    s.later(forward_seconds + 0.0005);
    at += 1;
  };
  const lengths = {};
  const pre = (rid, tokens, prefix) => {
    lengths[rid] = prefix + tokens;
    return { rid, kind: "prefill", tokens, prefix };
  };
  const dec = (...rids) => rids.map(rid => ({ rid, kind: "decode", tokens: 1, prefix: lengths[rid]++ }));
  for (let burst = 0; burst < 4; burst++) {
    for (let i = 0; i < 60; i++) {
      const rid = `c1.b${burst}`;
      if (!i) {
        label[rid] = [String(2 + burst), "", "text"];
        queue(rid, 100);
        admit(rid, 100, 0);
      }
      step(i ? dec(rid) : [pre(rid, 100, 0)], { under: i > 0 });
      if (i % 20 === 0) s.figures((used += 60));
    }
    state(`c1.b${burst}`, "finished", { reason: "stop", completion_tokens: 59 });
    s.later(far / 4 - 0.5);
    s.figures(used);
  }
  queue("c1.v", 400);
  s.later(0.024);
  admit("c1.v", 400, 312);
  step([pre("c1.v", 88, 312)], { under: false, notes: [{ rid: "c1.v", what: "admitted", reason: "fits", unit: "slots", needs: 88, has: 1400 }] });
  for (const rid of ["c1.a0", "c1.a1", "c1.a2", "c1.a3"]) queue(rid, 262);
  const following = ["c1.a1", "c1.a2", "c1.a3"].map(rid => ({ rid, what: "deferred", reason: "leader", leader: "c1.a0" }));
  admit("c1.a0", 262, 0);
  step([...dec("c1.v"), pre("c1.a0", 262, 0)], { notes: following });
  for (const rid of ["c1.a1", "c1.a2", "c1.a3"]) admit(rid, 262, 248);
  step([...dec("c1.v", "c1.a0"), pre("c1.a1", 14, 248), pre("c1.a2", 14, 248), pre("c1.a3", 14, 248)]);
  const one = ["c1.v", "c1.a0", "c1.a1", "c1.a2", "c1.a3"];
  for (let i = 0; i < 3; i++) step(dec(...one));
  queue("c1.s", 1460);
  admit("c1.s", 1460, 0);
  step([...dec(...one), pre("c1.s", 512, 0)]);
  queue("c1.x", 900);
  state("c1.x", "compiling", { reason: "compiling grammar" });
  const grammar = { rid: "c1.x", what: "deferred", reason: "grammar" };
  step([...dec(...one), pre("c1.s", 512, 512)], { notes: [grammar] });
  queue("c1.t0", 432);
  queue("c1.t1", 432);
  step([...dec(...one), pre("c1.s", 436, 1024)], { notes: [grammar] });
  admit("c1.t0", 432, 312);
  admit("c1.t1", 432, 312);
  const fits = { what: "admitted", reason: "fits", unit: "slots", needs: 120, has: 1036 };
  step([...dec(...one, "c1.s"), pre("c1.t0", 120, 312), pre("c1.t1", 120, 312)], { planned: 0.0025, forward: 0.0165, notes: [{ rid: "c1.t0", ...fits }, { rid: "c1.t1", ...fits }, grammar] });
  const two = [...one, "c1.s", "c1.t0", "c1.t1"];
  queue("c1.r", 500);
  step(dec(...two), { notes: [grammar] });
  s.later(0.004);
  admit("c1.r", 500, 340);
  step([...dec(...two), pre("c1.r", 160, 340)], { notes: [grammar], under: false });
  state("c1.x", "compiled");
  admit("c1.x", 900, 700);
  step([...dec(...two, "c1.r"), pre("c1.x", 200, 700)]);
  state("c1.a1", "finished", { reason: "stop", completion_tokens: 9 });
  const three = ["c1.v", "c1.a0", "c1.a2", "c1.a3", "c1.s", "c1.t0", "c1.t1", "c1.r", "c1.x"];
  step(dec(...three));
  for (const rid of ["c1.v", "c1.a0", "c1.a3"]) state(rid, "finished", { reason: "stop", completion_tokens: 12 });
  s.put({ t: "knob", step: s.step + 1, objective: "", knobs: { schedule_policy: "fcfs" } });
  const four = ["c1.a2", "c1.s", "c1.t0", "c1.t1", "c1.r", "c1.x"];
  for (let i = 0; i < 4; i++) step(dec(...four));
  queue("c1.w", 680);
  s.evict(old, "c1.s");
  s.flush();
  state("c1.t0", "retracted", { reason: "kv_full" });
  state("c1.a2", "finished", { reason: "length", completion_tokens: 15 });
  const short = { rid: "c1.w", what: "deferred", reason: "kv", unit: "slots", needs: 680, has: 412 };
  step(dec("c1.s", "c1.t1", "c1.r", "c1.x"), { notes: [{ rid: "c1.t0", what: "retracted", reason: "kv_full", unit: "slots", needs: 9, has: 3 }, short] });
  for (let i = 0; i < 7; i++) step(dec("c1.s", "c1.t1", "c1.r", "c1.x"), { notes: [short] });
  state("c1.t0", "admitted", { prompt_tokens: 432, cached_tokens: 312, match: { matched: 440, node: 0, cause: "hit" } });
  step([...dec("c1.s", "c1.t1", "c1.r", "c1.x"), pre("c1.t0", 12, 440)], { notes: [short] });
  for (let i = 0; i < 7; i++) step(dec("c1.s", "c1.t1", "c1.r", "c1.x", "c1.t0"), { notes: [short] });
  state("c1.r", "finished", { reason: "abort", completion_tokens: 40 });
  admit("c1.w", 680, 0);
  step([...dec("c1.s", "c1.t1", "c1.x", "c1.t0"), pre("c1.w", 512, 0)]);
  step([...dec("c1.s", "c1.t1", "c1.x", "c1.t0"), pre("c1.w", 168, 512)]);
  for (let i = 0; i < 9; i++) step(dec("c1.s", "c1.t1", "c1.x", "c1.t0", "c1.w"));
  s.figures(used + 2000);
  s.picked = at;
  return s;
}

/** `steps` steps of `streams` streams at 100 steps a second, and one finished and one new stream each second. */
export function long(steps, streams = 8) {
  const s = new Script({ slots: 4096, time: 10 });
  const live = [];
  let made = 0;
  for (let i = 0; i < steps; i++) {
    const rows = live.map(rid => ({ rid, kind: "decode", tokens: 1, prefix: 50 + (i % 900) }));
    const notes = [];
    if (i % 100 === 0) {
      if (live.length >= streams) {
        const rid = live.shift();
        s.state(rid, rid.slice(4), "", "x", "finished", { reason: "stop" });
      }
      for (let k = live.length; k < streams; k++) {
        const rid = `c1.r${++made}`;
        live.push(rid);
        s.state(rid, String(made), "", "x", "queued", { prompt_tokens: 50 });
        s.state(rid, String(made), "", "x", "admitted", { prompt_tokens: 50, cached_tokens: 20, match: { matched: 20, node: 0, cause: "short" } });
        rows.push({ rid, kind: "prefill", tokens: 30, prefix: 20 });
        notes.push({ rid, what: "admitted", reason: "fits", unit: "slots", needs: 30, has: 900 });
      }
    }
    s.put({ t: "step", step: ++s.step, mode: notes.length ? "mixed" : "decode", rows, notes, schedule_seconds: 0.0004, forward_seconds: 0.008, sample_seconds: 0.0004, process_seconds: 0.0003, free: 900, evictable: 10 });
    s.later(0.01);
    if (i % 25 === 0) s.figures(1000 + (i % 900));
  }
  return s;
}
