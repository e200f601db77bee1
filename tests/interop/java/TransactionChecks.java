// Transactional messages: decided at once, or by the broker asking back.
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

final class TransactionChecks {
    private static final int COUNT = 20;

    private TransactionChecks() {}

    static void register(Map<String, Check> checks) {
        checks.put("transaction_decided", TransactionChecks::decided);
        checks.put("transaction_checked_back", TransactionChecks::checkedBack);
    }

    /** Committed messages arrive once; those rolled back never. */
    static void decided(Cluster cluster) throws Exception {
        String topic = cluster.topic("decided", 2);
        Ledger ledger = new Ledger();
        DefaultMQPushConsumer consumer = cluster.consuming("decided", topic, "*", ledger);
        TransactionMQProducer producer = transactional(cluster, "decided", new Listener());

        for (int i = 0; i < COUNT; i++) {
            boolean commit = i % 2 == 0;
            Message message = cluster.message(topic, i);
            if (commit) ledger.sent(message);
            send(producer, message, commit ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE);
        }

        SendChecks.finish(cluster, topic, ledger, producer, consumer);
    }

    /** An undecided message is invisible until the broker has asked its producer, who then commits or rolls back. */
    static void checkedBack(Cluster cluster) throws Exception {
        String topic = cluster.topic("checked", 2);
        Ledger ledger = new Ledger();
        Ledger questions = new Ledger();
        DefaultMQPushConsumer consumer = cluster.consuming("checked", topic, "*", ledger);
        Listener listener = new Listener() {
            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt half) {
                questions.received(half);
                return Integer.parseInt(half.getUserProperty("n")) % 2 == 0 ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
            }
        };
        TransactionMQProducer producer = transactional(cluster, "checked", listener);

        for (int i = 0; i < COUNT / 2; i++) {
            Message message = cluster.message(topic, i);
            message.setFlag(0); // upstream stores a half message anew before it asks, and forgets the flag
            if (i % 2 == 0) ledger.sent(message);
            questions.sent(message);
            send(producer, message, LocalTransactionState.UNKNOW);
        }

        questions.awaitAll();
        SendChecks.finish(cluster, topic, ledger, producer, consumer);
        questions.requireUnchanged();
    }

    private static void send(TransactionMQProducer producer, Message message, LocalTransactionState decision) throws Exception {
        TransactionSendResult result = producer.sendMessageInTransaction(message, decision);
        Cluster.require(result.getSendStatus() == SendStatus.SEND_OK && result.getLocalTransactionState() == decision, result);
    }

    private static TransactionMQProducer transactional(Cluster cluster, String name, TransactionListener listener) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(cluster.prefix + name, Access.user());
        producer.setTransactionListener(listener);
        return cluster.started(producer);
    }

    private static class Listener implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object decision) {
            return (LocalTransactionState) decision;
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt half) {
            return LocalTransactionState.UNKNOW;
        }
    }
}
