"""What ``bench_page.py`` runs in the page and in the kernel: programs to measure, and scripts that note moments."""

PROGRAM = """%%sgl -o out
s += user("Say something about tea.")
forks = s.fork({streams})
for i, b in enumerate(forks):
    b += f"Arm {{i}}: " + gen("x", max_tokens={tokens}, ignore_eos=True, temperature=0)
forks.join()"""
DUMP = """import json, time
texts, counts, deltas = {}, {}, {}
for entry in out.core.log.since(0):
    event = entry.event
    if type(event).__name__ == "GenDelta":
        texts[event.rid] = texts.get(event.rid, "") + event.text
        counts[event.rid] = counts.get(event.rid, 0) + event.tokens
        heard = (time.time() - time.monotonic() + entry.time) * 1000
        deltas.setdefault(event.rid, []).append([counts[event.rid], len(texts[event.rid]), heard])
from sgnb.backends.engine import attach
steps, start, engine = {}, 1, attach("main")
while events := engine.ask("history", {"from_seq": start, "limit": 4000})["events"]:
    start = events[-1]["seq"] + 1
    for event in (one["event"] for one in events if one["event"]["t"] == "step"):
        for row in event["rows"]:
            if row["rid"] in texts:
                drawn = steps.setdefault(row["rid"], [])
                if row["kind"] == "prefill":
                    drawn.clear()
                drawn.append(event["time"] + event["forward_seconds"] + event["sample_seconds"])
json.dump({"texts": texts, "deltas": deltas, "steps": steps}, open("told.json", "w"))"""
KERNEL = "[...window.jupyterapp.shell.widgets('main')].find(one => one.sessionContext).sessionContext.session.kernel"
WATCH_TEXT = """() => {
  const seen = (window.sgnbSeen = new Map());
  const view = [...document.querySelectorAll('.sgnb-program')].pop();
  new MutationObserver(() => {
    const now = performance.timeOrigin + performance.now();
    for (const node of view.querySelectorAll('.sgnb-model')) {
      const marks = seen.get(node) ?? seen.set(node, []).get(node);
      const length = node.textContent.length;
      if (length !== marks[marks.length - 1]?.[1]) marks.push([now, length]);
    }
  }).observe(view, {subtree: true, childList: true, characterData: true});
}"""
SEEN = "() => [...window.sgnbSeen].map(([node, marks]) => [node.textContent, marks])"
WATCH_PAGE = f"""() => {{
  const messages = (window.sgnbMessages = []);
  const tasks = (window.sgnbTasks = []);
  ({KERNEL}).anyMessage.connect((_, {{msg, direction}}) => {{
    if (direction !== 'recv' || msg.channel !== 'iopub') return;
    messages.push([performance.now(), msg.header.msg_type, Date.parse(msg.header.date)]);
  }});
  new PerformanceObserver(list => tasks.push(...list.getEntries().map(one => [one.startTime, one.duration])))
    .observe({{type: 'longtask'}});
}}"""
FRAMES = """() => Object.fromEntries([...document.querySelectorAll('.sgnb-view')].map(
  view => [view.dataset.kind, Number(view.dataset.drawMs)]))"""
HIDE = """state => {
  Object.defineProperty(document, 'visibilityState', { configurable: true, get: () => state });
  document.dispatchEvent(new Event('visibilitychange'));
}"""
LOAD = """import threading, sgnb
from sgnb.backends.engine import attach
attach("main")
@sgnb.function
def one(s, i):
    s += f"{i}: " + sgnb.gen("x", max_tokens=400, ignore_eos=True)
def load():
    n = 0
    while True:
        n += 1
        one.run_batch([{"i": f"{n}.{i}"} for i in range(16)], progress_bar=False)
threading.Thread(target=load, daemon=True).start()"""
OTHER_KERNEL = """async code => {
  const kernel = await window.jupyterapp.serviceManager.kernels.startNew({name: 'python3'});
  const reply = await kernel.requestExecute({code}).done;
  return reply.content.status + ' ' + (reply.content.evalue ?? '');
}"""
MARKS = """(() => {
  const marks = (window.sgnbMarks = {});
  const first = (name, found) => { if (found && !(name in marks)) marks[name] = Math.round(performance.now()); };
  const kernel = () => [...window.jupyterapp.shell.widgets('main')]
    .find(one => one.sessionContext)?.sessionContext.session?.kernel;
  const timer = setInterval(() => {
    if (!window.jupyterapp) return;
    first('JupyterLab begins', true);
    if (!window.sgnbAsked) {
      window.sgnbAsked = true;
      window.jupyterapp.restored.then(() => first('its layout stands', true));
    }
    first('its kernel is connected', kernel()?.connectionStatus === 'connected');
    const panel = document.querySelector('#sgnb-panel .sgnb-Panel-content');
    first('the panel is right', ['idle', 'running'].includes(panel?.dataset.state));
    const view = document.querySelector('.sgnb-program');
    first('the cell shows its run', !!view?.dataset.seq || !!document.querySelector('.sgnb-Saved'));
    if (marks['the panel is right'] && marks['the cell shows its run']) clearInterval(timer);
  }, 10);
})()"""
RESTART = """async () => {
  const context = window.jupyterapp.shell.currentWidget.sessionContext;
  const content = document.querySelector('.sgnb-Panel-content');
  const { kernel } = context.session;
  const began = performance.now();
  const marks = {};
  const mark = name => { marks[name] ??= Math.round(performance.now() - began); };
  let anew = false; // what the old kernel still says of its end, on the old connection, is no answer
  const onStatus = (_, status) => {
    if (status === 'restarting') mark('restarting');
    else if (anew && status !== 'unknown') mark('the kernel answers');
  };
  const onConnection = (_, status) => { anew ||= status !== 'connected'; };
  kernel.statusChanged.connect(onStatus);
  kernel.connectionStatusChanged.connect(onConnection);
  await context.restartKernel();
  while (!anew || content.dataset.state !== 'not-loaded') await new Promise(done => setTimeout(done, 5));
  mark('the panel is right');
  kernel.statusChanged.disconnect(onStatus);
  kernel.connectionStatusChanged.disconnect(onConnection);
  return marks;
}"""
ATTACH = """async () => {
  const content = document.querySelector('.sgnb-Panel-content');
  const times = [];
  for (let i = 0; i < 10; i++) {
    const before = Number(content.dataset.seq);
    const began = performance.now();
    void window.jupyterapp.commands.execute('sgnb:reconnect');
    let left = false;
    while (!(left && content.dataset.state === 'idle')) {
      await new Promise(done => setTimeout(done, 2));
      left ||= content.dataset.state !== 'idle' || Number(content.dataset.seq) !== before;
    }
    times.push(performance.now() - began);
    await new Promise(done => setTimeout(done, 300));
  }
  return times;
}"""
CLOSE_PANES = """() => [...window.jupyterapp.shell.widgets('main')]
  .filter(one => one.node.querySelector('.sgnb-pane')).forEach(one => one.close())"""
