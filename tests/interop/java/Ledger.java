// What was sent against what arrived: nothing missing, nothing twice, nothing unexpected, nothing changed, nothing out of order.
//
// A message is known by its user property "id". Everything a sender sets (body, tags, keys, flag, user properties) is part of
// the comparison. Arrivals wake whoever waits: nothing here sleeps.
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.function.BooleanSupplier;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;

final class Ledger {
    static final long PATIENCE_MS = 60_000;
    static final String ID = "id";

    private final Map<String, String> sent = new LinkedHashMap<>();
    private final List<MessageExt> received = new ArrayList<>();
    private final Map<String, Integer> times = new HashMap<>();

    synchronized Message sent(Message message) {
        String id = message.getUserProperty(ID);
        if (sent.put(id, fingerprint(message)) != null) throw new AssertionError("sent twice by the test itself: " + id);
        return message;
    }

    synchronized void received(MessageExt message) {
        received.add(message);
        times.merge(String.valueOf(message.getUserProperty(ID)), 1, Integer::sum);
        notifyAll();
    }

    void received(Collection<MessageExt> messages) {
        for (MessageExt message : messages) received(message);
    }

    synchronized List<MessageExt> received() {
        return new ArrayList<>(received);
    }

    synchronized int sentCount() {
        return sent.size();
    }

    synchronized boolean isComplete() {
        return times.keySet().containsAll(sent.keySet());
    }

    /** Waits until every message sent has arrived at least once. */
    void awaitAll() throws InterruptedException {
        await(this::isComplete);
    }

    synchronized void await(BooleanSupplier enough) throws InterruptedException {
        long deadline = System.nanoTime() + PATIENCE_MS * 1_000_000;
        while (!enough.getAsBoolean()) {
            long left = (deadline - System.nanoTime()) / 1_000_000;
            if (left <= 0) throw new AssertionError("after " + PATIENCE_MS + " ms: " + difference());
            wait(left);
        }
    }

    /** Sent set == received set, each exactly once, each unchanged. */
    void requireExact() {
        requireEach(1);
    }

    /** Sent set == received set, each exactly *deliveries* times, each unchanged. */
    synchronized void requireEach(int deliveries) {
        requireUnchanged();
        Map<String, List<String>> wrong = new TreeMap<>();
        for (String id : sent.keySet()) if (times.getOrDefault(id, 0) != deliveries) wrong.put(id, arrivals(id));
        if (!wrong.isEmpty()) throw new AssertionError("deliveries other than " + deliveries + ": " + wrong);
    }

    private List<String> arrivals(String id) {
        List<String> arrivals = new ArrayList<>();
        for (MessageExt m : received) {
            if (!id.equals(m.getUserProperty(ID))) continue;
            arrivals.add(m.getMsgId() + " at " + m.getStoreHost() + "/" + m.getQueueId() + "/" + m.getQueueOffset() + " times " + m.getReconsumeTimes()
                + " born " + m.getBornTimestamp() + " stored " + m.getStoreTimestamp());
        }
        return arrivals;
    }

    /** Whatever arrived was sent, and is what was sent. */
    synchronized void requireUnchanged() {
        for (MessageExt message : received) {
            String id = message.getUserProperty(ID);
            String expected = sent.get(id);
            if (expected == null) throw new AssertionError("never sent: " + message);
            String actual = fingerprint(message);
            if (!expected.equals(actual)) throw new AssertionError("changed on the way: " + id + "\nsent     " + expected + "\nreceived " + actual);
        }
    }

    /** Messages of one queue arrived by rising offset; those of one sharding key by rising number ("n"). */
    synchronized void requireOrder() {
        Map<String, Long> offsets = new HashMap<>();
        Map<String, Integer> numbers = new HashMap<>();
        for (MessageExt message : received) {
            String queue = message.getStoreHost() + "/" + message.getQueueId();
            Long before = offsets.put(queue, message.getQueueOffset());
            if (before != null && before >= message.getQueueOffset()) {
                throw new AssertionError(queue + " went from offset " + before + " to " + message.getQueueOffset());
            }
            String key = message.getUserProperty("shard");
            int number = Integer.parseInt(message.getUserProperty("n"));
            Integer last = numbers.put(key, number);
            if (last != null && last >= number) throw new AssertionError("key " + key + " went from " + last + " to " + number);
        }
    }

    private String difference() {
        Set<String> missing = new HashSet<>(sent.keySet());
        missing.removeAll(times.keySet());
        Set<String> unexpected = new HashSet<>(times.keySet());
        unexpected.removeAll(sent.keySet());
        return "sent " + sent.size() + ", received " + received.size() + ", missing " + missing + ", unexpected " + unexpected;
    }

    private static String fingerprint(Message message) {
        Map<String, String> user = new TreeMap<>(message.getProperties());
        // What the client or the broker adds; TAGS, KEYS and the sender's own stay.
        user.keySet().removeIf(name -> MessageConst.STRING_HASH_SET.contains(name) && !name.equals("KEYS") && !name.equals("TAGS"));
        user.keySet().removeAll(Set.of("CLUSTER", "MSG_REGION", "TRACE_ON", "MIN_OFFSET", "MAX_OFFSET", "__transactionId__", "UNIQ_KEY", "TRANSACTION_CHECK_TIMES"));
        byte[] body = message.getBody();
        String head = new String(body, 0, Math.min(body.length, 24), StandardCharsets.ISO_8859_1);
        return user + " flag=" + message.getFlag() + " body=" + body.length + "/" + Arrays.hashCode(body) + "/" + head;
    }
}
