// Runs before a page's own scripts: counts the requests whose bodies the page has not read yet,
// and notes whether the page waits for frames to be drawn.
(() => {
  const key = Symbol.for("toolgate.pending");
  if (window[key]) return;
  const watch = { pending: 0, framed: false };
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
  for (const name of ["requestAnimationFrame", "requestIdleCallback", "IntersectionObserver", "ResizeObserver"]) {
    const made = window[name];
    if (!made) continue;
    window[name] = new Proxy(made, {
      apply: (target, self, given) => { watch.framed = true; return Reflect.apply(target, self, given); },
      construct: (target, given, as) => { watch.framed = true; return Reflect.construct(target, given, as); },
    });
  }
  const animate0 = Element.prototype.animate;
  Element.prototype.animate = function (...given) { watch.framed = true; return animate0.apply(this, given); };
  const listen0 = EventTarget.prototype.addEventListener;
  EventTarget.prototype.addEventListener = function (kind, ...given) {
    if (/^(transition|animation)/.test(kind)) watch.framed = true;
    return listen0.call(this, kind, ...given);
  };
  const send0 = XMLHttpRequest.prototype.send;
  XMLHttpRequest.prototype.send = function (...given) {
    this.addEventListener("loadend", begin(), { once: true });
    return send0.apply(this, given);
  };
})();
