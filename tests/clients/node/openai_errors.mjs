// openai-node meets our errors and our limits: the classes it throws, the codes, and its own retry.
// arguments: the gateway's base URL with /v1
import assert from "node:assert/strict";
import OpenAI from "openai";
import { check, rejects, run } from "./checks.mjs";

const [baseURL] = process.argv.slice(2);
let seen = []; // the status and headers of each answer, retries included

async function recording(url, init) {
  const answer = await fetch(url, init);
  seen.push({ status: answer.status, headers: answer.headers });
  return answer;
}

function chat({ key = "sk-node-free", retries = 0, ...fields } = {}) {
  seen = [];
  const client = new OpenAI({ baseURL, apiKey: key, maxRetries: retries, timeout: 60_000, fetch: recording });
  const messages = [{ role: "user", content: "hi" }];
  return client.chat.completions.create({ model: "smollm2", messages, max_tokens: 1, ...fields });
}
const statuses = () => seen.map(({ status }) => status);

check("a wrong key is an AuthenticationError", async () => {
  assert.equal((await rejects(OpenAI.AuthenticationError, chat({ key: "sk-wrong" }))).code, "invalid_api_key");
});

check("an unknown model is a NotFoundError", async () => {
  assert.equal((await rejects(OpenAI.NotFoundError, chat({ model: "gpt-unknown" }))).code, "model_not_found");
});

check("a prompt longer than the context is a BadRequestError", async () => {
  const messages = [{ role: "user", content: "word ".repeat(20_000) }];
  assert.equal((await rejects(OpenAI.BadRequestError, chat({ messages }))).code, "context_length_exceeded");
});

check("absurd numbers are BadRequestErrors that name the field", async () => {
  for (const [field, value] of [["max_tokens", -5], ["max_tokens", 1e300], ["n", 0], ["temperature", "hot"]]) {
    assert.equal((await rejects(OpenAI.BadRequestError, chat({ [field]: value }))).param, field, `${field}=${value}`);
  }
});

check("its retry waits as long as we said, and then succeeds at the first attempt", async () => {
  await chat({ key: "sk-node-paced" });
  const began = performance.now();
  await chat({ key: "sk-node-paced", retries: 2 });
  const took = performance.now() - began;
  assert.deepEqual(statuses(), [429, 200]);
  const promised = Number(seen[0].headers.get("retry-after-ms"));
  // Timers of Node may fire up to a millisecond early.
  assert.ok(promised - 1 <= took && took < promised + 2000, `promised ${promised} ms, took ${took} ms`);
});

check("a budget that ends with the day is not retried", async () => {
  await chat({ key: "sk-node-daily" });
  const began = performance.now();
  const error = await rejects(OpenAI.RateLimitError, chat({ key: "sk-node-daily", retries: 2 }));
  assert.equal(error.code, "insufficient_quota");
  assert.deepEqual(statuses(), [429]);
  assert.ok(performance.now() - began < 2000, "the client waited");
});

check("what can never fit is refused at once, and not retried", async () => {
  const error = await rejects(OpenAI.RateLimitError, chat({ key: "sk-node-small", retries: 2, max_tokens: 1000 }));
  assert.equal(error.code, "request_too_large");
  assert.deepEqual(statuses(), [429]);
});

await run();
