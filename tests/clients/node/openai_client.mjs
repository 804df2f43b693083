// openai-node against a gateway in front of the engine with SmolLM2: only the base URL differs from its normal use.
// arguments: the gateway's base URL with /v1, the engine's URL without it, the folder of golden files
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import OpenAI from "openai";
import { check, run } from "./checks.mjs";

const [baseURL, engine, golden] = process.argv.slice(2);
const model = "smollm2";
const messages = [{ role: "user", content: "Name the planets of the solar system." }];
const client = new OpenAI({ baseURL, apiKey: "sk-free", maxRetries: 0, timeout: 60_000 });

// A greedy answer of at most 24 tokens, unless the fields say otherwise.
const chat = (fields = {}) => {
  const cap = "max_completion_tokens" in fields ? {} : { max_tokens: 24 };
  return client.chat.completions.create({ model, messages, temperature: 0, ...cap, ...fields });
};
const text = async (fields) => (await chat(fields)).choices[0].message.content;

async function streamed(fields = {}) {
  const chunks = [];
  for await (const chunk of await chat({ stream: true, ...fields })) chunks.push(chunk);
  const choices = chunks.flatMap((chunk) => chunk.choices);
  return {
    text: choices.map((choice) => choice.delta.content ?? "").join(""),
    reasons: choices.map((choice) => choice.finish_reason).filter(Boolean),
    chunks,
  };
}

async function countByEngine(prompt) {
  const body = JSON.stringify({ model, prompt, add_special_tokens: false });
  const answer = await fetch(`${engine}/tokenize`, { method: "POST", headers: { "content-type": "application/json" }, body });
  return (await answer.json()).count;
}

check("models are listed, and one can be retrieved", async () => {
  assert.deepEqual((await client.models.list()).data.map(({ id }) => id), [model]);
  assert.equal((await client.models.retrieve(model)).object, "model");
});

check("a chat has text, a role, a finish reason and the model's name", async () => {
  const answer = await chat();
  assert.ok(answer.choices[0].message.content.trim());
  assert.equal(answer.choices[0].message.role, "assistant");
  assert.equal(answer.choices[0].finish_reason, "length");
  assert.equal(answer.model, model);
});

check("prompt tokens equal the golden chat template's, to the token", async () => {
  const { items } = JSON.parse(await readFile(`${golden}/smollm2_chat_template.json`, "utf8"));
  // An item with a note holds control tokens in the user's text, which we never parse.
  const plain = items.filter((item) => !("note" in item) && item.add_generation_prompt);
  assert.ok(plain.length >= 3, "the golden file has lost its items");
  for (const item of plain) {
    const { usage } = await chat({ messages: item.messages, max_tokens: 1 });
    assert.equal(usage.prompt_tokens, item.ids.length, item.id);
  }
});

check("completion tokens equal the cap when the answer is cut, and the engine's own count of the text", async () => {
  const answer = await chat();
  assert.equal(answer.usage.completion_tokens, 24);
  assert.equal(await countByEngine(answer.choices[0].message.content), 24);
  assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + 24);
});

check("a stream gives the same text as one answer, and no usage unless it was asked for", async () => {
  for (const fields of [{}, { stream_options: { include_usage: false } }]) {
    const { text: whole, reasons, chunks } = await streamed(fields);
    assert.equal(whole, await text());
    assert.deepEqual(reasons, ["length"]);
    assert.ok(chunks.every((chunk) => chunk.choices.length > 0 && !chunk.usage), "usage that nobody asked for");
  }
});

check("with include_usage the last chunk, and only it, has usage and no choices", async () => {
  const { chunks } = await streamed({ stream_options: { include_usage: true } });
  assert.equal(chunks.filter((chunk) => chunk.choices.length === 0).length, 1);
  const { usage, choices } = chunks.at(-1);
  assert.deepEqual(choices, []);
  const expected = (await chat()).usage;
  assert.deepEqual([usage.prompt_tokens, usage.completion_tokens], [expected.prompt_tokens, expected.completion_tokens]);
});

check("the client's stream helper puts the message together", async () => {
  const runner = client.chat.completions.stream({ model, messages, temperature: 0, max_tokens: 24 });
  assert.equal((await runner.finalMessage()).content, await text());
});

check("stop ends the text before the stop string, streamed or not", async () => {
  const whole = await text({ max_tokens: 48 });
  const words = whole.trim().split(/\s+/);
  const stop = words[Math.floor(words.length / 2)];
  const before = whole.slice(0, whole.indexOf(stop));
  const answer = await chat({ max_tokens: 48, stop: [stop] });
  assert.equal(answer.choices[0].message.content, before);
  assert.equal(answer.choices[0].finish_reason, "stop");
  const stream = await streamed({ max_tokens: 48, stop });
  assert.deepEqual([stream.text, stream.reasons], [before, ["stop"]]);
});

check("max_completion_tokens caps like max_tokens", async () => {
  const answer = await chat({ max_completion_tokens: 5 });
  assert.equal(answer.usage.completion_tokens, 5);
  assert.equal(answer.choices[0].message.content, await text({ max_tokens: 5 }));
});

check("one seed gives one text, another seed another; top_p near zero leaves the likeliest token", async () => {
  const drawn = (seed) => text({ temperature: 1, seed });
  assert.equal(await drawn(7), await drawn(7));
  assert.ok(new Set([await drawn(7), await drawn(8), await drawn(9)]).size > 1, "three seeds, one text");
  assert.equal(await text({ temperature: 1, top_p: 1e-6, seed: 3 }), await text());
});

check("leaving a stream early leaves the client usable", async () => {
  for await (const chunk of await chat({ stream: true, max_tokens: 500 })) {
    if (chunk.choices[0]?.delta.content) break;
  }
  assert.ok(await text({ max_tokens: 1 }));
});

await run();
