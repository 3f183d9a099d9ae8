// An engine view as an anywidget: its model is the comm, `key` names the store, `engine` the engine.

import { storeOf } from "./store.js";

/** The object that anywidget wants, for a view class. */
export function widgetOf(ViewClass) {
  return {
    render({ model, el }) {
      const host = document.createElement("div");
      host.tabIndex = -1;
      el.append(host);
      const store = storeOf(model.get("key"));
      const channel = {
        send: content => model.send(content),
        onMessage: listener => {
          const take = (content, buffers) => listener(content, buffers);
          model.on("msg:custom", take);
          return () => model.off("msg:custom", take);
        },
      };
      const detach = store.attach(channel);
      const view = new ViewClass(host, store, { engine: model.get("engine"), data: model.get("data") });
      const changed = () => {
        view.options.data = model.get("data");
        view.changed();
      };
      model.on("change:data", changed);
      return () => {
        model.off("change:data", changed);
        view.destroy();
        detach();
        host.remove();
      };
    },
  };
}
