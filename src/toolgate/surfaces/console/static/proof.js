// Checks a proof in the browser: the server is not trusted.
// RFC 9162 2.1.3.2 for the path, Ed25519 over the checkpoint's note where the browser knows it.

const bytesOf = (text) => new TextEncoder().encode(text);
const decoded = (base64) => Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
const joined = (...parts) => { const all = new Uint8Array(parts.reduce((n, part) => n + part.length, 0)); let at = 0; for (const part of parts) { all.set(part, at); at += part.length; } return all; };
const sha256 = async (data) => new Uint8Array(await crypto.subtle.digest("SHA-256", data));
const hex = (data) => [...data].map((one) => one.toString(16).padStart(2, "0")).join("");
const node = (left, right) => sha256(joined(Uint8Array.of(1), left, right));

async function rootOf(leaf, index, size, path) {
  let [fn, sn, hash] = [BigInt(index), BigInt(size) - 1n, leaf];
  for (const step of path) {
    if (sn === 0n) throw new Error("the path is too long");
    if (fn & 1n || fn === sn) {
      hash = await node(step, hash);
      while (!(fn & 1n) && fn !== 0n) { fn >>= 1n; sn >>= 1n; }
    } else hash = await node(hash, step);
    fn >>= 1n;
    sn >>= 1n;
  }
  if (sn !== 0n) throw new Error("the path is too short");
  return hash;
}

async function isSigned(note, key) {
  const [text, signatures] = [note.slice(0, note.indexOf("\n\n") + 1), note.slice(note.indexOf("\n\n") + 2)];
  const [name, id, material] = [key.slice(0, key.indexOf("+")), key.split("+")[1], key.slice(key.indexOf("+") + key.split("+")[1].length + 2)];
  const line = signatures.split("\n").find((one) => one.startsWith(`— ${name} `));
  if (!line) throw new Error("the checkpoint is not signed by this key");
  const blob = decoded(line.split(" ")[2]);
  if (hex(blob.slice(0, 4)) !== id) throw new Error("the checkpoint is signed by another key");
  let imported;
  try { imported = await crypto.subtle.importKey("raw", decoded(material).slice(1), { name: "Ed25519" }, false, ["verify"]); } catch { return false; }
  if (!(await crypto.subtle.verify("Ed25519", imported, blob.slice(4), bytesOf(text)))) throw new Error("the signature is wrong");
  return true;
}

export async function checkProof(proof, key) {
  if (proof.key !== key) throw new Error("it is signed by another key than the log's");
  const [, size, root] = proof.checkpoint.split("\n");
  const leaf = await sha256(joined(Uint8Array.of(0), bytesOf(proof.record)));
  const reached = await rootOf(leaf, proof.index, Number(size), proof.proof.map(decoded));
  if (hex(reached) !== hex(decoded(root))) throw new Error("the record is not in the log at this index");
  const named = JSON.parse(proof.record).artifacts;
  for (const [ref, digest] of Object.entries(named)) {
    if (`sha256:${hex(await sha256(bytesOf(proof.artifacts[ref] ?? "")))}` !== digest) throw new Error(`artifact ${ref} is not what was recorded`);
  }
  return { index: proof.index, size: Number(size), artifacts: Object.keys(named).length, signed: await isSigned(proof.checkpoint, key) };
}
