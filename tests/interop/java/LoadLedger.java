// Continuous load on one topic while somebody moves its queues: keyed senders, one ordered consumer, and what came of it.
//
//   LoadLedger NAMESRV TOPIC KEYS PAUSE_MICROS      every key has a thread, a queue, and never more than one send in flight
//
//   flow COUNT    answers {"flowed": n} once that many more were acknowledged and have come
//   measure       wait until nearly everything has come, and forget the times so far: they are those of a client that starts
//   settle        ends the sending, waits for what is missing, and prints the sums as one object
//
// Nothing is retried: a failed send is one that the application saw. The client keeps its defaults: it asks for routes every
// thirty seconds. "pause" is the time from wanting to send to having the acknowledgement; "delay" is from then to delivery.
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

public final class LoadLedger {
    private static final long PATIENCE_MS = 60_000;

    private final String topic;
    private final Map<String, String> places = new HashMap<>();      // acknowledged message -> "queue/offset"
    private final Map<String, Long> acknowledgedAt = new HashMap<>();
    private final Map<String, List<String>> seen = new HashMap<>();  // message -> where it was seen
    private final Map<Integer, Set<Long>> offsets = new HashMap<>(); // queue -> offsets of what was seen
    private final Map<String, Long> latest = new HashMap<>();        // key -> highest number seen
    private final Map<String, Integer> failures = new HashMap<>();
    private final List<Long> pauses = new ArrayList<>();
    private final List<Long> delays = new ArrayList<>();
    private final Set<String> missing = new HashSet<>();
    private long arrivals;
    private long outOfOrder;
    private volatile boolean over;

    private LoadLedger(String topic) {
        this.topic = topic;
    }

    public static void main(String[] arguments) throws Exception {
        Hurry.start();
        LoadLedger ledger = new LoadLedger(arguments[1]);
        DefaultMQPushConsumer consumer = ledger.consumer(arguments[0]);
        DefaultMQProducer producer = new DefaultMQProducer("load");
        producer.setNamesrvAddr(arguments[0]);
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        List<Thread> senders = new ArrayList<>();
        for (int key = 0; key < Integer.parseInt(arguments[2]); key++) {
            int mine = key;
            Thread thread = new Thread(() -> ledger.countUp(producer, mine, Long.parseLong(arguments[3]) * 1000));
            senders.add(thread);
            thread.start();
        }
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Report.line("ready", true);
        for (String line = in.readLine(); line != null && !line.equals("settle"); line = in.readLine()) {
            if (line.equals("measure")) ledger.measureAnew();
            else Report.line("flowed", ledger.flow(Integer.parseInt(line.split(" ")[1])));
        }
        ledger.over = true;
        for (Thread sender : senders) sender.join();
        ledger.settle();
        producer.shutdown();
        consumer.shutdown();
        System.exit(0); // clients leave threads behind
    }

    private DefaultMQPushConsumer consumer(String nameServer) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(topic + "-load");
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt message : messages) see(message);
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        return consumer;
    }

    private void countUp(DefaultMQProducer producer, int key, long pauseNanos) {
        for (long number = 0; !over; number++) {
            String body = key + " " + number;
            long wanted = System.nanoTime();
            try {
                SendResult result = producer.send(new Message(topic, body.getBytes(StandardCharsets.UTF_8)), (queues, message, turn) -> {
                    List<MessageQueue> sorted = new ArrayList<>(queues);
                    Collections.sort(sorted);
                    return sorted.get((int) turn % sorted.size());
                }, key);
                acknowledge(body, result.getMessageQueue().getQueueId() + "/" + result.getQueueOffset(), System.nanoTime() - wanted);
            } catch (Exception failed) {
                fail(failed);
            }
            LockSupport.parkNanos(pauseNanos);
        }
    }

    private synchronized void fail(Exception failed) {
        failures.merge(failed.toString(), 1, Integer::sum);
    }

    private synchronized void acknowledge(String body, String place, long took) {
        places.put(body, place);
        pauses.add(took);
        acknowledgedAt.put(body, System.nanoTime());
        if (!seen.containsKey(body)) missing.add(body);
        notifyAll();
    }

    private synchronized void see(MessageExt message) {
        String body = new String(message.getBody(), StandardCharsets.UTF_8);
        String key = body.substring(0, body.indexOf(' '));
        long number = Long.parseLong(body.substring(body.indexOf(' ') + 1));
        if (missing.remove(body)) delays.add(System.nanoTime() - acknowledgedAt.get(body));
        if (!seen.containsKey(body) && number < latest.getOrDefault(key, -1L)) outOfOrder++;
        latest.merge(key, number, Math::max);
        seen.computeIfAbsent(body, unseen -> new ArrayList<>()).add(message.getQueueId() + "/" + message.getQueueOffset());
        offsets.computeIfAbsent(message.getQueueId(), unseen -> new HashSet<>()).add(message.getQueueOffset());
        arrivals++;
        notifyAll();
    }

    private synchronized void measureAnew() throws InterruptedException {
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        while (missing.size() > 16 && System.currentTimeMillis() < deadline) wait(100);
        pauses.clear();
        delays.clear();
    }

    private synchronized int flow(int count) throws InterruptedException {
        int sent = places.size() + count;
        long come = arrivals + count;
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        while ((places.size() < sent || arrivals < come) && System.currentTimeMillis() < deadline) wait(100);
        return places.size();
    }

    private synchronized void settle() throws InterruptedException {
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        while (!missing.isEmpty() && System.currentTimeMillis() < deadline) wait(100);
        long repeated = 0;
        long misplaced = 0;
        long holes = 0;
        for (List<String> where : seen.values()) repeated += where.size() - 1;
        for (Map.Entry<String, String> one : places.entrySet()) if (seen.containsKey(one.getKey()) && !seen.get(one.getKey()).contains(one.getValue())) misplaced++;
        for (Set<Long> found : offsets.values()) holes += Collections.max(found) + 1 - found.size();
        Report.line("acknowledged", places.size(), "failed", failures, "lost", missing.size(), "repeated", repeated, "out_of_order", outOfOrder,
            "misplaced", misplaced, "holes", holes, "pause_p99_ms", percentile(pauses, 99), "pause_max_ms", percentile(pauses, 100),
            "delay_p99_ms", percentile(delays, 99), "delay_max_ms", percentile(delays, 100));
    }

    private static long percentile(List<Long> nanos, int percent) {
        if (nanos.isEmpty()) return -1;
        Collections.sort(nanos);
        return nanos.get(Math.min(nanos.size() - 1, nanos.size() * percent / 100)) / 1_000_000;
    }
}
