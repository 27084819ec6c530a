// Runs before a page's own scripts: counts what the page waits for (the bodies of requests that it
// has not read yet, frames, idle moments, a first sight of something), and notes if it is animated.
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
  const DRAWN_GRACE_MS = 500; // a frame, an idle moment or a first sight may never come
  const FRAMES = 12; // of each kind: an animation that never ends is not waited for
  const once = (callback) => {
    const end = begin();
    setTimeout(end, DRAWN_GRACE_MS);
    return function (...given) { end(); return callback.apply(this, given); };
  };
  for (const name of ["requestAnimationFrame", "requestIdleCallback", "IntersectionObserver", "ResizeObserver"]) {
    const made = window[name];
    if (!made) continue;
    let left = FRAMES;
    const awaited = ([callback, ...rest]) => {
      watch.framed = true;
      return typeof callback === "function" && left-- > 0 ? [once(callback), ...rest] : [callback, ...rest];
    };
    window[name] = new Proxy(made, {
      apply: (target, self, given) => Reflect.apply(target, self, awaited(given)),
      construct: (target, given, as) => Reflect.construct(target, awaited(given), as),
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
