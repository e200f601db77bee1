// Continuous load on one topic while somebody moves its queues: every row of it is kept for whoever does the sums.
//
//   MoveLoad NAMESRV TOPIC KEYS FILE     every key has a thread, the queue of its number, and one send in flight
//
//   flow     answers "flowing" once every key was acknowledged and delivered again
//   stop     ends the sending, waits for what is missing, writes FILE and answers "written"
//
//   A key number wanted acked queue offset port     acknowledged; times in microseconds since 1970, port of the broker that has it
//   F key number wanted failed reason               an application saw it fail: nothing is retried
//   S key number queue offset                       seen by the consumer, in this order
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

public final class MoveLoad {
    private static final long PATIENCE_MS = 90_000;
    private static final int FLOWING = 20; // acknowledgements of a key after which it flows again

    private final String topic;
    private final int keys;
    private final AtomicIntegerArray acknowledged;
    private final AtomicIntegerArray delivered;
    private final List<List<String>> sent = new ArrayList<>();
    private final List<String> seen = Collections.synchronizedList(new ArrayList<>());
    private volatile boolean over;

    private MoveLoad(String topic, int keys) {
        this.topic = topic;
        this.keys = keys;
        acknowledged = new AtomicIntegerArray(keys);
        delivered = new AtomicIntegerArray(keys);
        for (int key = 0; key < keys; key++) sent.add(new ArrayList<>());
    }

    public static void main(String[] arguments) throws Exception {
        MoveLoad load = new MoveLoad(arguments[1], Integer.parseInt(arguments[2]));
        load.consumer(arguments[0]);
        DefaultMQProducer producer = new DefaultMQProducer("load");
        producer.setNamesrvAddr(arguments[0]);
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        List<Thread> senders = new ArrayList<>();
        for (int key = 0; key < load.keys; key++) {
            int mine = key;
            senders.add(new Thread(() -> load.countUp(producer, mine)));
        }
        for (Thread sender : senders) sender.start();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        System.out.println("ready");
        for (String line = in.readLine(); line != null && !line.equals("stop"); line = in.readLine()) {
            System.out.println(load.flow() ? "flowing" : "stuck");
        }
        load.over = true;
        for (Thread sender : senders) sender.join();
        load.settle();
        List<String> rows = new ArrayList<>();
        load.sent.forEach(rows::addAll);
        synchronized (load.seen) {
            rows.addAll(load.seen);
        }
        Files.write(Path.of(arguments[3]), rows);
        System.out.println("written");
        System.exit(0); // clients leave threads behind
    }

    private void consumer(String nameServer) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(topic + "-load");
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt message : messages) {
                String[] words = new String(message.getBody(), StandardCharsets.UTF_8).split(" ", 3);
                seen.add(String.join("\t", "S", words[0], words[1], "" + message.getQueueId(), "" + message.getQueueOffset()));
                delivered.incrementAndGet(Integer.parseInt(words[0]));
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
    }

    private void countUp(DefaultMQProducer producer, int key) {
        List<String> rows = sent.get(key);
        String rest = " " + "x".repeat(1000);
        for (long number = 0; !over; number++) {
            byte[] body = (key + " " + number + rest).getBytes(StandardCharsets.UTF_8);
            long wanted = now();
            try {
                SendResult result = producer.send(new Message(topic, body), (queues, message, mine) -> {
                    for (MessageQueue queue : queues) if (queue.getQueueId() == (int) mine) return queue;
                    throw new IllegalStateException("no queue " + mine);
                }, key);
                String where = result.getOffsetMsgId().split(",")[0]; // host, port, position
                rows.add(String.join("\t", "A", "" + key, "" + number, "" + wanted, "" + now(), "" + result.getMessageQueue().getQueueId(),
                    "" + result.getQueueOffset(), "" + Integer.parseInt(where.substring(8, 16), 16)));
                acknowledged.incrementAndGet(key);
            } catch (Exception failed) {
                String reason = failed instanceof MQBrokerException ? "code " + ((MQBrokerException) failed).getResponseCode() : failed.getClass().getSimpleName();
                rows.add(String.join("\t", "F", "" + key, "" + number, "" + wanted, "" + now(), reason));
                LockSupport.parkNanos(1_000_000);
            }
        }
    }

    private static long now() {
        return ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now());
    }

    private boolean flow() throws InterruptedException {
        int[] acknowledgedBefore = new int[keys];
        int[] deliveredBefore = new int[keys];
        for (int key = 0; key < keys; key++) {
            acknowledgedBefore[key] = acknowledged.get(key);
            deliveredBefore[key] = delivered.get(key);
        }
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        for (int key = 0; key < keys; key++) {
            while (acknowledged.get(key) < acknowledgedBefore[key] + FLOWING || delivered.get(key) <= deliveredBefore[key]) {
                if (System.currentTimeMillis() > deadline) return false;
                Thread.sleep(10);
            }
        }
        return true;
    }

    private void settle() throws InterruptedException {
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        for (int key = 0; key < keys; key++) {
            while (delivered.get(key) < acknowledged.get(key) && System.currentTimeMillis() < deadline) Thread.sleep(10);
        }
        Thread.sleep(500); // what would come twice comes now
    }
}
