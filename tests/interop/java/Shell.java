// Runs one command after the other in one JVM: starting one for each costs seconds.
//
// Reads a line of words, separated by tabs; answers with the lines of the command, and last {"command": ..., "printed": ...}.
// These commands are our own, all others are mqadmin's, whose output is in "printed":
//
//   seed NAMESRV TOPIC GROUP COUNT     COUNT messages that GROUP consumes, COUNT that it does not
//   fill NAMESRV TOPIC START COUNT     messages of every shape
//   delay NAMESRV TOPIC START COUNT    messages that are due in ten seconds
//   commit NAMESRV TOPIC GROUP         half of every queue
//   dump NAMESRV TOPIC GROUP           everything a client can see of a topic, a JSON line each
//   find NAMESRV TOPIC GROUP           how many messages of the topic are found by their ids
//   stored NAMESRV TOPIC               how many messages the topic holds
//   pull NAMESRV TOPIC FROM TAGS COUNT           every queue from an offset on, COUNT messages at a time
//   consume NAMESRV TOPIC GROUP TAGS COUNT KEYS  as a group, until COUNT are done; those with one of KEYS fail once
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.tools.command.MQAdminStartup;

public final class Shell {
    private static final Set<String> OURS = Set.of("seed", "fill", "delay", "commit", "dump", "find", "stored", "pull", "consume");

    public static void main(String[] arguments) throws Exception {
        Hurry.start();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Report.line("ready", true);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split("\t");
            String printed;
            try {
                printed = OURS.contains(words[0]) ? our(words) : mqadmin(words);
            } catch (Exception | AssertionError failed) {
                Report.line("command", line, "error", Report.trace(failed));
                continue;
            }
            Report.line("command", line, "printed", printed);
        }
        System.exit(0); // clients leave threads behind
    }

    private static String our(String[] words) throws Exception {
        Cluster cluster = new Cluster(words[1], "");
        try {
            String topic = words[2];
            switch (words[0]) {
                case "seed": return seed(cluster, topic, words[3], Integer.parseInt(words[4]));
                case "fill": StoreVerbs.fill(cluster, topic, Integer.parseInt(words[3]), Integer.parseInt(words[4])); return "";
                case "delay": StoreVerbs.delay(cluster, topic, Integer.parseInt(words[3]), Integer.parseInt(words[4])); return "";
                case "commit": StoreVerbs.commit(cluster, topic, words[3]); return "";
                case "dump": StoreVerbs.dump(cluster, topic, words[3]); return "";
                case "find": return String.valueOf(StoreVerbs.find(cluster, topic, words[3]));
                case "pull": BatchVerbs.pull(cluster, topic, Long.parseLong(words[3]), words[4], Integer.parseInt(words[5])); return "";
                case "consume": BatchVerbs.consume(cluster, topic, words[3], words[4], Integer.parseInt(words[5]), words[6]); return "";
                case "stored": return String.valueOf(cluster.stored(topic));
                default: throw new IllegalArgumentException(words[0]);
            }
        } finally {
            cluster.admin.shutdown();
        }
    }

    private static String mqadmin(String[] words) {
        PrintStream out = System.out;
        PrintStream err = System.err;
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        try (PrintStream captured = new PrintStream(printed, true, StandardCharsets.UTF_8)) {
            System.setOut(captured);
            System.setErr(captured);
            MQAdminStartup.main0(words, null);
        } finally {
            System.setOut(out);
            System.setErr(err);
        }
        return printed.toString(StandardCharsets.UTF_8);
    }

    private static String seed(Cluster cluster, String topic, String group, int count) throws Exception {
        Ledger ledger = new Ledger();
        DefaultMQProducer producer = cluster.producer(group + "-seed");
        SendResult first = null;
        for (int i = 0; i < count; i++) {
            SendResult result = producer.send(ledger.sent(cluster.message(topic, i)));
            first = first == null ? result : first;
        }
        DefaultMQPushConsumer consumer = cluster.consuming(group, topic, "*", ledger);
        ledger.awaitAll();
        consumer.shutdown();
        for (int i = count; i < 2 * count; i++) producer.send(cluster.message(topic, i));
        producer.shutdown();
        return first.getMsgId() + " " + first.getOffsetMsgId() + " " + first.getMessageQueue().getBrokerName() + " "
            + first.getMessageQueue().getQueueId() + " " + first.getQueueOffset();
    }
}
