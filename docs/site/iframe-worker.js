// Search in a site that is opened from a folder. There browsers start no worker, and the theme's search is one. This class takes the place of Worker:
// it runs the script in a hidden frame. The plugin `offline` would load such a class from another host, unless a file of this name is there.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.early = []; // messages from before the script was there
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.answer = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.frame.srcdoc = `<script>postMessage = (data) => frameElement.answer(data)</script><script src="${url}"></script>`;
      this.frame.onload = () => {
        const early = this.early;
        this.early = null;
        early.forEach((data) => this.postMessage(data));
      };
      document.body.append(this.frame);
    }
    postMessage(data) {
      if (this.early) this.early.push(data);
      else this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
