// Reads topics that hold batches, and tells of every message where it was and what it said.
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

final class BatchVerbs {
    private BatchVerbs() {}

    /** Pulls every queue from *from* on, to its end, *count* messages at a time, and tells how each pull went. */
    static void pull(Cluster cluster, String topic, long from, String tags, int count) throws Exception {
        DefaultMQPullConsumer consumer = cluster.pullConsumer("batch-puller");
        for (MessageQueue queue : new TreeSet<>(Cluster.retry(() -> consumer.fetchSubscribeMessageQueues(topic)))) {
            long end = Cluster.retry(() -> consumer.maxOffset(queue));
            for (long at = from; at < end; ) {
                long asked = at;
                PullResult result = Cluster.retry(() -> consumer.pull(queue, tags, asked, count));
                Cluster.require(result.getNextBeginOffset() > at, queue + " at " + at + ": " + result);
                at = result.getNextBeginOffset();
                List<MessageExt> found = result.getMsgFoundList();
                Report.line("pulled", asked, "status", result.getPullStatus(), "next", at, "found", found == null ? 0 : found.size());
                if (found != null) for (MessageExt message : found) print(message);
            }
        }
        consumer.shutdown();
    }

    /** Consumes as a group until *count* messages were done; those with a key of *failing* fail the first time. */
    static void consume(Cluster cluster, String topic, String group, String tags, int count, String failing) throws Exception {
        Set<String> toFail = ConcurrentHashMap.newKeySet();
        toFail.addAll(Arrays.asList(failing.split(",")));
        CountDownLatch left = new CountDownLatch(count);
        DefaultMQPushConsumer consumer = cluster.pushConsumer(group, topic, tags);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                if (toFail.remove(message.getKeys())) {
                    context.setDelayLevelWhenNextConsume(1);
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
                print(message);
                left.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Cluster.require(left.await(Ledger.PATIENCE_MS, TimeUnit.MILLISECONDS), left.getCount() + " messages did not come");
        consumer.shutdown();
    }

    private static void print(MessageExt message) {
        Report.line("message", message.getMsgId(), "topic", message.getTopic(), "queue", message.getQueueId(), "offset", message.getQueueOffset(),
            "body", new String(message.getBody(), StandardCharsets.UTF_8), "tags", message.getTags(), "keys", message.getKeys(),
            "flag", message.getFlag(), "times", message.getReconsumeTimes());
    }
}
