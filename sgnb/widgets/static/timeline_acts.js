// The timeline's buttons that make files: Save recording…, Export Perfetto…, Compare policies…; their forms and answers.
//
// The kernel does the work (sgnb/widgets/file_verbs.py) and answers by store.ask. One form is open at a time; a comparison is
// asked for by number until it is done, failed or cancelled.

import { button, el, fill, on, seenPart, setText, table } from "./dom.js";
import { count, seconds, share } from "./format.js";
import { parts, PLACES, trans } from "./trans.js";

const POLICIES = ["lpm", "fcfs", "dfs-weight", "lof", "priority", "random"];
const POLL = 500;
const RECORD_POLL = 1000;

/** `{element, update, close}`; `say(words)` tells the live region, `window()` gives {from, to}. */
export function actsBar(store, { say, window: windowOf }) {
  const acts = { open: "", recording: null, file: "", job: "", timer: 0, asked: -Infinity, closed: false };
  const opens = (words, name) => button(words, () => (acts.open === name ? shut() : show(name)), { "aria-expanded": "false" });
  const save = opens(trans.__("Save recording…"), "save");
  const perfetto = opens(trans.__("Export Perfetto…"), "perfetto");
  const compare = opens(trans.__("Compare policies…"), "compare");
  const status = el("span", "sgnb-dim sgnb-time-status");
  const form = el("div", "sgnb-time-form", { hidden: true });
  const answer = el("div", "sgnb-time-answer", { hidden: true });
  const element = el("div", "sgnb-time-acts", {}, el("div", "sgnb-time-act-row", {}, save, perfetto, compare, status), form, answer);

  const tell = (nodes, { trouble = false } = {}) => {
    const list = [nodes].flat();
    answer.hidden = !list.length;
    answer.classList.toggle("sgnb-trouble-text", trouble);
    fill(answer, list.map(node => (typeof node === "string" ? el("p", "", {}, node) : node)));
    if (list.length) intoSight(answer);
    if (list.length && typeof list[0] === "string") say(list[0]);
  };
  /** What opens below the buttons, or is told there, is seen, unless the reader has gone elsewhere. */
  const intoSight = node => {
    const seen = seenPart(element);
    if (seen.bottom - seen.top > 1) node.scrollIntoView({ block: "nearest" });
  };
  const failed = error => tell(error.message, { trouble: true });
  const shut = () => {
    acts.open = "";
    form.hidden = true;
    fill(form, []);
    mark();
  };
  const mark = () => {
    for (const [name, one] of Object.entries({ save, perfetto, compare })) one.setAttribute("aria-expanded", String(acts.open === name));
  };
  const show = name => {
    if (name === "save" && acts.recording) return stop();
    acts.open = name;
    tell([]);
    fill(form, ...forms[name]());
    form.hidden = false;
    mark();
    intoSight(form);
    // a recording may have been made elsewhere since the last look
    if (name === "compare" && !acts.file && !store.replaying) {
      store.ask("record", { action: "state" }).then(taken => {
        taken_(taken);
        if (acts.open === "compare" && acts.file) fill(form, ...forms.compare());
      }, () => {});
    }
    return form.querySelector("input")?.focus();
  };
  const submit = (words, act) => button(words, act, { className: "sgnb-time-go" });
  const cancel = () => button(trans.__("Cancel"), shut);
  const input = (label, value, act) => {
    const node = el("input", "sgnb-input sgnb-time-file", { type: "text", "aria-label": label, value, spellcheck: "false" });
    on(node, "keydown", event => {
      event.stopPropagation();
      if (event.key === "Enter") act();
      if (event.key === "Escape") shut();
    });
    return node;
  };

  const forms = {
    save() {
      const begin = () => {
        store.ask("record", { action: "start", file: file.value.trim(), text: text.checked }).then(taken => {
          shut();
          taken_(taken);
        }, failed);
      };
      const file = input(trans.__("File of the recording"), "run.sgnb", begin);
      const text = el("input", "", { type: "checkbox", checked: true });
      return [el("label", "", {}, parts(trans.__("Write to %1", ...PLACES), file)), el("label", "", {}, parts(trans.__("%1 with the text of this notebook's requests", ...PLACES), text)), submit(trans.__("Record"), begin), cancel()];
    },
    perfetto() {
      const begin = () => {
        const { from, to } = windowOf();
        const window = part.value === "view" ? { from, to } : {};
        tell(trans.__("Writing …"));
        store.ask("perfetto", { file: file.value.trim(), ...window }).then(done => {
          shut();
          tell(trans.__("Wrote %1, %2 events. Open it at ui.perfetto.dev; nothing is uploaded.", done.file, count(done.events)));
        }, failed);
      };
      const file = input(trans.__("File of the export"), "timeline.json", begin);
      const part = el("select", "sgnb-select", { "aria-label": trans.__("What to export") }, el("option", "", { value: "view" }, trans.__("what is in view")), el("option", "", { value: "all" }, trans.__("all that is kept")));
      return [el("label", "", {}, parts(trans.__("Write %1 to %2", ...PLACES), part, file)), submit(trans.__("Export"), begin), cancel()];
    },
    compare() {
      if (!acts.file && !store.replaying) {
        return [el("span", "", {}, trans.__("A comparison needs a recording: record the programs you care about, then compare.")), submit(trans.__("Save recording…"), () => show("save")), cancel()];
      }
      const boxes = POLICIES.map((policy, i) => el("input", "", { type: "checkbox", value: policy, checked: i < 2 }));
      const begin = () => {
        const policies = boxes.filter(box => box.checked).map(box => box.value);
        const chunks = chunk.value.split(",").map(Number).filter(Number.isInteger).filter(Boolean);
        if (!policies.length) return tell(trans.__("Choose at least one policy."), { trouble: true });
        const { from, to } = windowOf();
        const part = what.value === "view" ? { from, to } : {};
        const inside = record => record.queued >= from && record.queued <= to;
        if (what.value === "view" && ![...store.history.requests.values()].some(inside)) {
          return tell(trans.__("No request was asked in what is in view. Zoom out, or compare the whole recording."), { trouble: true });
        }
        return store.ask("compare", { policies, chunks, ...part }).then(({ job }) => {
          shut();
          acts.job = job;
          wait(performance.now());
        }, failed);
      };
      const chunk = input(trans.__("Chunk sizes"), "", begin);
      chunk.placeholder = "64,512";
      const what = el("select", "sgnb-select", { "aria-label": trans.__("What to simulate") }, el("option", "", { value: "view" }, trans.__("what is in view")), el("option", "", { value: "all" }, trans.__("all")));
      return [
        el("span", "", {}, parts(trans.__("Simulate %1 of %2 under ", ...PLACES), what, el("b", "", {}, acts.file || trans.__("this recording")))),
        ...boxes.map((box, i) => el("label", "", {}, box, ` ${POLICIES[i]}`)),
        el("label", "", {}, parts(trans.__("chunk %1", ...PLACES), chunk)),
        submit(trans.__("Compare"), begin),
        cancel(),
      ];
    },
  };

  function taken_({ recording, file, seconds: spent, events }) {
    acts.recording = recording ? { file, spent, events } : null;
    acts.file = file || acts.file;
    setText(save, recording ? trans.__("Stop recording") : trans.__("Save recording…"));
    setText(status, recording ? trans.__("Recording to %1, %2, %3 events", file, seconds(spent), count(events)) : "");
  }

  function stop() {
    return store.ask("record", { action: "stop" }).then(taken => {
      taken_(taken);
      tell(taken.words);
    }, failed);
  }

  /** Ask for a comparison until it has ended. */
  function wait(began) {
    if (acts.closed || !acts.job) return;
    const drop = button(trans.__("Cancel"), () => {
      store.ask("compared", { job: acts.job, cancel: true }).catch(() => {});
      acts.job = "";
      tell(trans.__("The comparison was cancelled."));
    });
    const words = el("span", "", {}, trans.__("Simulating …"));
    tell([el("p", "sgnb-time-busy", {}, words, " ", drop)]);
    say(trans.__("Simulating."));
    const again = () => {
      const { job } = acts;
      if (acts.closed || !job) return;
      setText(words, trans.__("Simulating, %1 …", seconds((performance.now() - began) / 1000)));
      store.ask("compared", { job }).then(done => {
        if (acts.job !== job) return;
        if (done.state === "running") return void (acts.timer = setTimeout(again, POLL));
        acts.job = "";
        if (done.state === "failed") tell(done.error, { trouble: true });
        else tell(comparison(done));
      }, error => {
        acts.job = "";
        failed(error);
      });
    };
    again();
  }

  const update = () => {
    const alive = ["idle", "running"].includes(store.engineState);
    const replay = !!store.replaying;
    save.hidden = replay;
    save.disabled = !alive;
    perfetto.disabled = compare.disabled = !alive && !replay;
    for (const one of [save, perfetto, compare]) one.title = one.disabled ? trans.__("No engine is running.") : "";
    const now = performance.now();
    if (!alive || replay || now - acts.asked < (acts.recording ? RECORD_POLL : 10 * RECORD_POLL)) return;
    acts.asked = now;
    store.ask("record", { action: "state" }).then(taken_, () => {});
  };
  const close = () => {
    acts.closed = true;
    clearTimeout(acts.timer);
  };
  return { element, update, close };
}

const compared = () => [
  [trans.__("Prompt tokens reused"), one => share(one.hit_rate, 1)],
  [trans.__("First token, p50"), one => seconds(one.ttft_p50)],
  [trans.__("First token, p95"), one => seconds(one.ttft_p95)],
  [trans.__("Between tokens, p50"), one => seconds(one.inter_token_p50, true)],
  [trans.__("Between tokens, p95"), one => seconds(one.inter_token_p95, true)],
  [trans.__("Tokens/s"), one => count(one.throughput)],
  [trans.__("Retractions"), one => count(one.retractions)],
  [trans.__("Evicted tokens"), one => count(one.evicted_tokens)],
  [trans.__("Steps"), one => count(one.steps)],
  [trans.__("Time"), one => seconds(one.seconds)],
];

/** The settings side by side: one column each, figures as rows; and how far they can be trusted. */
export function comparison(done) {
  const settings = done.settings ?? [];
  const columns = [{ name: "" }, ...settings.map(one => ({ name: one.setting, number: true }))];
  const rows = compared().map(([name, value]) => [name, ...settings.map(value)]);
  const nodes = [table(columns, rows, { caption: trans.__("Simulated with the scheduler itself: %1", done.script ?? ""), className: "sgnb-time-compared" })];
  for (const note of done.notes ?? []) nodes.push(el("p", "sgnb-dim", {}, `${note}.`.replace("..", ".")));
  return nodes;
}
