'use strict';
// One application with a producer and a member of a group, at the command of its standard input: `ali-ons`.
//
//   node member.js NAMESRV TOPIC GROUP NAME      (NODE_PATH names the folder of the installed package)
//
// ACCESS_USER and ACCESS_SECRET in the environment: it signs its requests. The commands and lines are those of java/Member.java. The package rebalances every ten seconds and hears no notifications.
const readline = require('readline');
const { Consumer, Message, Producer } = require('ali-ons');

const [ nameServer, topic, group, name ] = process.argv.slice(2);
const quiet = { info() {}, debug() {}, warn() {}, error() {} };
// The package insists on an HTTP client although it has the name server's address; the interval's name is its own.
const common = {
  httpclient: { request() { throw new Error('no look-up wanted'); } }, nameSrv: nameServer, logger: quiet, pollNameServerInteval: 1000,
  accessKeyId: process.env.ACCESS_USER, accessKeySecret: process.env.ACCESS_SECRET,
};
let number = 0;

function tell(line) {
  process.stdout.write(JSON.stringify(line) + '\n');
}

async function send(producer) {
  const turn = number++;
  try {
    const result = await producer.send(new Message(topic, '', `${name} ${turn}`));
    tell({ sent: [ result.messageQueue.queueId, result.queueOffset, turn ] });
  } catch (error) {
    tell({ failed: String(error.message || error) });
  }
}

(async () => {
  const consumer = new Consumer({ ...common, consumerGroup: group, consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET' });
  consumer.on('error', () => {}); // it reports "no offset yet" as an error, and carries on
  consumer.subscribe(topic, '*', async message => tell({ got: [ message.queueId, message.queueOffset, message.body.toString() ] }));
  await consumer.ready();
  const producer = new Producer({ ...common, producerGroup: name + '-producer' });
  producer.on('error', () => {});
  await producer.ready();
  tell({ ready: true });
  for await (const line of readline.createInterface({ input: process.stdin })) {
    if (line === 'quit') break;
    for (let left = Number(line.split(' ')[1]); left > 0; left--) await send(producer);
  }
  await producer.close();
  await consumer.close();
  tell({ bye: true });
  process.exit(); // the package keeps a producer of its own for retries, and offers no way to close it
})();
