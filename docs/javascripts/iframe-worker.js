/* Browsers start no workers for pages that are opened as files. Search then runs in a hidden frame that behaves like one. */
"use strict";
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      this.ready = new Promise((loaded) => this.frame.addEventListener("load", loaded, { once: true }));
      addEventListener("message", (event) => {
        if (event.source !== inside) return;
        const copy = new MessageEvent("message", { data: event.data });
        this.dispatchEvent(copy);
        if (this.onmessage) this.onmessage(copy);
      });
      const page = inside.document;
      page.open();
      page.write(`<script>
        postMessage = (data) => parent.postMessage(data, "*");
        importScripts = (...names) => names.reduce((before, name) => before.then(() => new Promise((done) => {
          const script = document.createElement("script");
          script.src = name; script.onload = done; document.body.append(script);
        })), Promise.resolve());
      <\/script><script src="${address}"><\/script>`);
      page.close();
    }
    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
