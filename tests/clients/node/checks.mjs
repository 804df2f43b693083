// A check is a function named by a sentence. All of them run; the exit status says whether all passed.
import assert from "node:assert/strict";

const checks = [];

export const check = (sentence, body) => checks.push([sentence, body]);

export async function run() {
  let failed = 0;
  for (const [sentence, body] of checks) {
    const began = performance.now();
    let verdict = "PASS";
    try {
      await body();
    } catch (error) {
      console.log(error);
      verdict = "FAIL";
      failed += 1;
    }
    console.log(`${verdict} ${sentence} (${((performance.now() - began) / 1000).toFixed(2)} s)`);
  }
  console.log(`${checks.length - failed} passed, ${failed} failed`);
  process.exit(failed || !checks.length ? 1 : 0);
}

// The error of exactly this class, which `promise` must end with.
export async function rejects(kind, promise) {
  const error = await promise.then(() => assert.fail(`${kind.name} was not thrown`), (thrown) => thrown);
  assert.equal(error.constructor, kind, String(error));
  return error;
}
