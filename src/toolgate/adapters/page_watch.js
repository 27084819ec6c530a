// Runs before a page's own scripts: counts the requests whose bodies the page has not read yet.
(() => {
  const key = Symbol.for("toolgate.pending");
  if (window[key]) return;
  const watch = { pending: 0 };
  Object.defineProperty(window, key, { value: watch });
  const begin = () => {
    watch.pending++;
    let over = false;
    return () => { if (!over) { over = true; watch.pending--; } };
  };
  const READ_GRACE_MS = 200; // an answer whose body nobody reads is not waited for
  const fetch0 = window.fetch;
  if (fetch0) {
    window.fetch = function (...given) {
      const end = begin();
      return fetch0.apply(this, given).then((answer) => {
        let reading = false;
        for (const name of ["json", "text", "arrayBuffer", "blob", "formData"]) {
          const read0 = answer[name];
          answer[name] = function () { reading = true; return read0.apply(answer).finally(end); };
        }
        setTimeout(() => { if (!reading) end(); }, READ_GRACE_MS);
        return answer;
      }, (failed) => { end(); throw failed; });
    };
  }
  const send0 = XMLHttpRequest.prototype.send;
  XMLHttpRequest.prototype.send = function (...given) {
    this.addEventListener("loadend", begin(), { once: true });
    return send0.apply(this, given);
  };
})();
