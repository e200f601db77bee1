'use strict';
// The pure-JavaScript client `ali-ons` against a cluster: send, consume concurrently, tags, retry, shut down and come back.
//
//   node ali_ons.js NAMESRV PREFIX      (NODE_PATH names the folder of the installed package)
//
// ACCESS_USER and ACCESS_SECRET in the environment: it signs its requests.
//
// The topics PREFIX + plain, tags, retry exist already: this client cannot make one. Prints one JSON line per check and exits
// with 0 only when all passed. A ledger wakes whoever waits for it; nothing sleeps.
const { Consumer, Message, Producer } = require('ali-ons');

const [ nameServer, prefix ] = process.argv.slice(2);
const PATIENCE_MS = 60000;
const quiet = { info() {}, debug() {}, warn() {}, error() {} };
// The package insists on an HTTP client although it has the name server's address.
const common = {
  httpclient: { request() { throw new Error('no look-up wanted'); } }, nameSrv: nameServer, logger: quiet,
  accessKeyId: process.env.ACCESS_USER, accessKeySecret: process.env.ACCESS_SECRET,
};

class Ledger {
  constructor() {
    this.sent = new Map();
    this.received = [];
    this.wake = () => {};
  }

  receive(message) {
    this.received.push(message);
    this.wake();
  }

  async wait(enough, what) {
    const deadline = Date.now() + PATIENCE_MS;
    while (!enough()) {
      const left = deadline - Date.now();
      if (left <= 0) throw new Error(`${what}: sent ${this.sent.size}, received ${JSON.stringify(this.received.map(m => m.keys))}`);
      await new Promise(resolve => {
        const timer = setTimeout(resolve, left);
        this.wake = () => { clearTimeout(timer); resolve(); };
      });
    }
  }

  requireEach(times) {
    const counts = new Map();
    for (const message of this.received) {
      const sent = this.sent.get(message.keys);
      if (!sent) throw new Error('never sent: ' + message.keys);
      if (sent.body !== message.body || sent.tags !== message.tags) throw new Error('changed on the way: ' + message.keys);
      counts.set(message.keys, (counts.get(message.keys) || 0) + 1);
    }
    for (const key of this.sent.keys()) {
      if (counts.get(key) !== times) throw new Error(`${key} came ${counts.get(key)} times instead of ${times}`);
    }
  }
}

function seen(message) {
  const { tags, keys, topic, queueId, queueOffset, reconsumeTimes } = message;
  return { body: message.body.toString(), tags, keys: String(keys), topic, queueId, queueOffset, times: reconsumeTimes || 0 };
}

async function consume(group, topic, expression, handler) {
  const consumer = new Consumer({ ...common, consumerGroup: prefix + group, consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET' });
  consumer.on('error', () => {}); // it reports "no offset yet" as an error, and carries on
  consumer.subscribe(prefix + topic, expression, handler);
  await consumer.ready();
  return consumer;
}

// A message counts as consumed a turn after its handler returned; closing before that would leave it uncommitted.
async function close(consumer) {
  while ([ ...consumer.processQueueTable.values() ].some(item => item.processQueue.msgCount)) await new Promise(setImmediate);
  await consumer.close();
}

async function send(producer, ledger, topic, number, { tag = 'TagA', body = `body ${number} é消🚀`, wanted = true } = {}) {
  const message = new Message(prefix + topic, tag, body);
  message.keys = [ `${topic}-${number}` ];
  if (wanted) ledger.sent.set(`${topic}-${number}`, { body, tags: tag });
  const result = await producer.send(message);
  if (result.sendStatus !== 'SEND_OK' && result.sendStatus !== 0) throw new Error('send: ' + JSON.stringify(result));
}

// Bodies over 4 KiB travel compressed.
async function plain(producer) {
  const ledger = new Ledger();
  const consumer = await consume('plain', 'plain', '*', async message => ledger.receive(seen(message)));
  for (let i = 0; i < 20; i++) await send(producer, ledger, 'plain', i, i % 5 === 4 ? { body: 'z'.repeat(5000 + i) } : {});
  await ledger.wait(() => ledger.received.length >= ledger.sent.size, 'plain');
  await close(consumer);
  ledger.requireEach(1);
}

async function tags(producer) {
  const ledger = new Ledger();
  const consumer = await consume('tags', 'tags', 'TagA || TagB', async message => ledger.receive(seen(message)));
  for (let i = 0; i < 20; i++) await send(producer, ledger, 'tags', i, { tag: 'Tag' + 'ABCD'[i % 4], wanted: i % 4 < 2 });
  await ledger.wait(() => ledger.received.length >= ledger.sent.size, 'tags');
  await close(consumer);
  ledger.requireEach(1);
}

// Refused once, everything comes once more.
async function retry(producer) {
  const ledger = new Ledger();
  const consumer = await consume('retry', 'retry', '*', async message => {
    ledger.receive(seen(message));
    if (!message.reconsumeTimes) throw new Error('not yet');
  });
  for (let i = 0; i < 3; i++) await send(producer, ledger, 'retry', i);
  await ledger.wait(() => ledger.received.filter(m => m.times === 1).length >= 3, 'retry');
  await close(consumer);
  ledger.requireEach(2);
}

// A group that was shut down goes on where it stopped.
async function comeBack(producer) {
  const ledger = new Ledger();
  const consumer = await consume('plain', 'plain', '*', async message => ledger.receive(seen(message)));
  for (let i = 100; i < 110; i++) await send(producer, ledger, 'plain', i);
  await ledger.wait(() => ledger.received.length >= ledger.sent.size, 'come back');
  await close(consumer);
  ledger.requireEach(1);
}

async function check(name, run) {
  try {
    await run();
    console.log(JSON.stringify({ check: name, ok: true }));
  } catch (error) {
    process.exitCode = 1;
    console.log(JSON.stringify({ check: name, ok: false, error: String(error.stack || error) }));
  }
}

(async () => {
  const producer = new Producer({ ...common, producerGroup: prefix + 'producer' });
  producer.on('error', () => {});
  await producer.ready();
  const plainThenBack = async () => {
    await check('plain', () => plain(producer));
    await check('come_back', () => comeBack(producer));
  };
  await Promise.all([ plainThenBack(), check('tags', () => tags(producer)), check('retry', () => retry(producer)) ]);
  await check('shut_down', () => producer.close());
  process.exit(); // the package keeps a producer of its own for retries, and offers no way to close it
})();
