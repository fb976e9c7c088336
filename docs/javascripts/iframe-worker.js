// A page that is opened as a file may start no worker: the theme's search runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.host = this;
      this.frame.srcdoc = `<body><script>
        postMessage = data => frameElement.host.dispatchEvent(new MessageEvent("message", {data}));
        importScripts = (...urls) => urls.reduce((before, src) => before.then(() => new Promise(next => {
          const script = Object.assign(document.createElement("script"), {src, onload: next, onerror: next});
          document.body.append(script);
        })), Promise.resolve());
      <\/script><script src="${url}"><\/script></body>`;
      this.frame.onload = () => {
        this.isReady = true;
        this.waiting.forEach(data => this.postMessage(data));
      };
      document.body.append(this.frame);
    }

    postMessage(data) {
      if (this.isReady) {
        this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
      } else {
        this.waiting.push(data);
      }
    }
  };
  window.Worker = window.IFrameWorker;
}
