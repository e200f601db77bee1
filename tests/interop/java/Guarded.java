// What a client does that may be refused, one command after the other, and how many requests it sends for it.
//
//   Guarded NAMESRV          reads lines of words, separated by tabs; the first one names an actor
//
// Actors do this at the same time, each with clients of its own:
//
//   as USER SECRET           from now on; "as -": without credentials. All clients are new.
//   send|async|batch|oneway|transaction TOPIC
//   pull TOPIC GROUP
//   consume|ordered TOPIC GROUP         start; what comes is told as {"got": [group, body]}
//   watch COUNT              do nothing until that many routes have been asked for: a consumer does so every second
//
// Each is answered with {"actor", "command", "code", "error", "asked"}: the code of the refusal or 0, and by code the requests of
// the actor since it began.
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;

public final class Guarded {
    private static final int PATIENCE_MS = 20_000;
    private static final int POLL_MS = 10;
    private static final int GET_ROUTE = 105;
    private static final AtomicInteger INSTANCES = new AtomicInteger();

    private final String nameServer;
    private final String actor;
    private final ExecutorService worker = Executors.newSingleThreadExecutor();
    private final Map<Integer, AtomicLong> asked = new ConcurrentHashMap<>();
    private final List<Runnable> closers = new ArrayList<>();
    private RPCHook signer;
    private TransactionMQProducer producer;
    private DefaultMQPullConsumer puller;

    private Guarded(String nameServer, String actor) {
        this.nameServer = nameServer;
        this.actor = actor;
    }

    public static void main(String[] arguments) throws Exception {
        Hurry.start();
        Map<String, Guarded> actors = new HashMap<>();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Report.line("ready", true);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split("\t", 2);
            Guarded actor = actors.computeIfAbsent(words[0], name -> new Guarded(arguments[0], name));
            actor.worker.execute(() -> actor.obey(words[1]));
        }
        System.exit(0); // clients leave threads behind
    }

    private void obey(String line) {
        Map<Integer, Long> before = asked();
        int code = 0;
        String error = null;
        try {
            run(line.split("\t"));
        } catch (Exception failed) {
            code = codeOf(failed);
            error = Report.trace(failed);
        }
        Map<Integer, Long> since = asked();
        before.forEach((request, count) -> since.merge(request, -count, Long::sum));
        Report.line("actor", actor, "command", line, "code", code, "error", error, "asked", since);
    }

    private Map<Integer, Long> asked() {
        Map<Integer, Long> counts = new TreeMap<>();
        asked.forEach((code, count) -> counts.put(code, count.get()));
        return counts;
    }

    private static int codeOf(Throwable failed) {
        for (Throwable each = failed; each != null; each = each.getCause()) {
            if (each instanceof MQBrokerException) return ((MQBrokerException) each).getResponseCode();
            if (each instanceof MQClientException && ((MQClientException) each).getResponseCode() > 0) return ((MQClientException) each).getResponseCode();
        }
        return -1;
    }

    private void run(String[] words) throws Exception {
        String topic = words[1];
        switch (words[0]) {
            case "as": begin(words); break;
            case "send": producer().send(message(topic)); break;
            case "async": sendAsync(topic); break;
            case "batch": producer().send(Arrays.asList(message(topic), message(topic))); break;
            case "oneway": producer().sendOneway(message(topic)); break;
            case "transaction": producer().sendMessageInTransaction(message(topic), null); break;
            case "pull": pull(topic, words[2]); break;
            case "consume":
            case "ordered":
                consume(topic, words[2], words[0].equals("ordered"));
                break;
            case "watch": watch(Long.parseLong(words[1])); break;
            default: throw new IllegalArgumentException(words[0]);
        }
    }

    private void watch(long count) throws InterruptedException {
        long end = asked().getOrDefault(GET_ROUTE, 0L) + count;
        while (asked().getOrDefault(GET_ROUTE, 0L) < end) Thread.sleep(POLL_MS);
    }

    private void begin(String[] words) {
        closers.forEach(Runnable::run);
        closers.clear();
        producer = null;
        puller = null;
        signer = words[1].equals("-") ? null : Access.signing(words[1], words[2]);
    }

    private <C extends ClientConfig> C configured(C client) {
        client.setNamesrvAddr(nameServer);
        client.setInstanceName("guarded" + INSTANCES.getAndIncrement());
        return client;
    }

    private TransactionMQProducer producer() throws MQClientException {
        if (producer != null) return producer;
        producer = configured(new TransactionMQProducer("guarded", Access.counting(signer, asked)));
        producer.setSendMsgTimeout(PATIENCE_MS);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt half) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        producer.start();
        closers.add(producer::shutdown);
        return producer;
    }

    private static Message message(String topic) {
        return new Message(topic, ("of " + topic).getBytes(StandardCharsets.UTF_8));
    }

    private void sendAsync(String topic) throws Exception {
        CompletableFuture<SendResult> sent = new CompletableFuture<>();
        producer().send(message(topic), new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                sent.complete(result);
            }

            @Override
            public void onException(Throwable failed) {
                sent.completeExceptionally(failed);
            }
        });
        sent.get(PATIENCE_MS, TimeUnit.MILLISECONDS);
    }

    private void pull(String topic, String group) throws Exception {
        if (puller == null) {
            puller = configured(new DefaultMQPullConsumer(group, Access.counting(signer, asked)));
            puller.start();
            closers.add(puller::shutdown);
        }
        for (MessageQueue queue : puller.fetchSubscribeMessageQueues(topic)) puller.pull(queue, "*", 0, 1);
    }

    private void consume(String topic, String group, boolean isOrdered) throws Exception {
        DefaultMQPushConsumer consumer = configured(new DefaultMQPushConsumer(group, Access.counting(signer, asked), new AllocateMessageQueueAveragely()));
        consumer.setPollNameServerInterval(1000); // what it repeats, it repeats often enough to be counted
        consumer.setHeartbeatBrokerInterval(1000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        if (isOrdered) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                tell(group, messages);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                tell(group, messages);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        closers.add(consumer::shutdown);
    }

    private static void tell(String group, List<MessageExt> messages) {
        for (MessageExt message : messages) Report.line("got", List.of(group, new String(message.getBody(), StandardCharsets.UTF_8)));
    }
}
