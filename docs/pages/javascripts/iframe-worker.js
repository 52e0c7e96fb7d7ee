// The site's search runs in a worker, which browsers refuse to start for pages that are opened from a folder. There,
// this script runs the worker's code in a hidden frame instead. Material for MkDocs would load such a script from the
// network. It serves workers of one file only: those without importScripts.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this.frame = frame;
      // What the worker posts arrives here; what is posted to it waits until its code has run.
      this.ready = new Promise((resolve) => {
        const inner = frame.contentDocument;
        inner.open();
        inner.write("<!DOCTYPE html><html><body></body></html>");
        inner.close();
        frame.contentWindow.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
        const script = inner.createElement("script");
        script.src = url;
        script.onload = resolve;
        script.onerror = () => this.dispatchEvent(new Event("error"));
        inner.body.appendChild(script);
      });
    }

    postMessage(data) {
      this.ready.then(() => {
        const inner = this.frame.contentWindow;
        inner.dispatchEvent(new inner.MessageEvent("message", { data }));
      });
    }

    terminate() {
      this.frame.remove();
    }
  };
}
