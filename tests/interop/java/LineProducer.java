// One producer, which sends when it is asked to, and lives on when that fails.
//
//   NAMESRV
//
// Reads lines: "send TOPIC" is answered with {"sent": broker} or {"failed": code, "text": ...};
// "subscribe TOPIC GROUP" starts a consumer, whose heartbeats go on, and is answered with {"subscribed": TOPIC}.
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;

public final class LineProducer {
    public static void main(String[] arguments) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("line-producer");
        producer.setNamesrvAddr(arguments[0]);
        producer.setInstanceName("line-producer");
        producer.setPollNameServerInterval(500);
        producer.setSendMsgTimeout(10_000);
        producer.start();
        Report.line("ready", true);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            if (words[0].equals("subscribe")) {
                subscribe(arguments[0], words[1], words[2]);
                continue;
            }
            try {
                Report.line("sent", producer.send(new Message(words[1], new byte[10])).getMessageQueue().getBrokerName());
            } catch (MQClientException refused) {
                Report.line("failed", refused.getResponseCode(), "text", String.valueOf(refused.getCause()));
            } catch (MQBrokerException refused) {
                // Codes that Java's client does not retry, such as 501 for a queue of a stale route.
                Report.line("failed", refused.getResponseCode(), "text", refused.getErrorMessage());
            }
        }
        System.exit(0);
    }

    private static void subscribe(String nameServer, String topic, String group) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(group);
        consumer.setHeartbeatBrokerInterval(500);
        consumer.setPollNameServerInterval(500);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
        consumer.start();
        Report.line("subscribed", topic);
    }
}
