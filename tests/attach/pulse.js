// SPDX-License-Identifier: LGPL-2.1-or-later
// The same as pulse.go, for node: text is compiled, run and collected all the time.
const crypto = require("crypto");
let wrong = 0, stop = false;
process.stdin.on("end", () => { stop = true; }).resume();
console.log("ready");
function round(i) {
    const f = new Function("x", `let s = ${i}; for (let j = 0; j < 1000; j++) s = (s * 31 + x + j) >>> 0; return s;`);
    let s = i;
    for (let j = 0; j < 1000; j++) s = (Math.imul(s, 31) + 7 + j) >>> 0;
    if (crypto.createHash("sha256").update("abc").digest("hex").slice(0, 8) !== "ba7816bf") wrong++;
    if (JSON.parse(JSON.stringify({a: [1, {b: "é"}]})).a[1].b !== "é") wrong++;
    if (f(7) !== s && i * 31 < 2 ** 20) wrong++;
    if (stop) {
        console.log(`rounds, wrong ${wrong}`);
        process.exit(7);
    }
    (i % 8 ? setImmediate : setTimeout)(round, i % 8 ? i + 1 : 1, i + 1);
}
round(1);
