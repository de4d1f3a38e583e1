import com.sun.net.httpserver.HttpServer;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Executors;
import java.util.concurrent.Semaphore;

/** An HTTP service on the JDK's server with one fault per flag: `java Service port=8080 lock-ms=5 ...`. */
public class Service {
    static final Map<String, Integer> FLAGS = new HashMap<>();
    static final Object LOCK = new Object();
    static final List<Object[]> KEPT = new ArrayList<>();
    static volatile Object last;
    static volatile long sink;

    static int flag(String name, int fallback) {
        return FLAGS.getOrDefault(name, fallback);
    }

    static void compute(long micros) {
        long x = 1;
        for (long end = System.nanoTime() + micros * 1000; System.nanoTime() < end;) {
            for (int i = 0; i < 500; i++) x = x * 6364136223846793005L + 1442695040888963407L;
        }
        sink = x;
    }

    static void pause(int millis) throws InterruptedException {
        if (millis > 0) Thread.sleep(millis);
    }

    static void handle() throws InterruptedException {
        pause(flag("sleep-ms", 0));
        if (flag("lock-ms", 0) > 0) {
            synchronized (LOCK) {
                pause(flag("lock-ms", 0));
            }
        }
        if (flag("cpu-us", 0) > 0) compute(flag("cpu-us", 0));
        for (int i = 0; i < flag("garbage-kb", 0); i++) last = new byte[1024];
        if (flag("churn", 0) > 0) {
            // Replaces part of the live set, so that objects become garbage only in the old generation and each full collection has work.
            synchronized (LOCK) {
                for (int i = 0; i < flag("churn", 0); i++) KEPT.set((int) (Math.random() * KEPT.size()), new Object[16]);
            }
        }
        if (flag("collect", 0) > 0) System.gc();
    }

    public static void main(String[] arguments) throws Exception {
        for (String argument : arguments) {
            String[] pair = argument.split("=");
            FLAGS.put(pair[0], Integer.parseInt(pair[1]));
        }
        for (int i = 0; i < flag("keep-mb", 0) * 10000; i++) KEPT.add(new Object[16]);
        byte[] body = new byte[flag("reply", 200)];
        HttpServer server = HttpServer.create(new InetSocketAddress(flag("port", 8080)), flag("backlog", 1024));
        server.setExecutor(Executors.newFixedThreadPool(flag("workers", 16)));
        Semaphore gate = new Semaphore(flag("gate", 1000));
        server.createContext("/", exchange -> {
            try {
                gate.acquire();
                try {
                    handle();
                } finally {
                    gate.release();
                }
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
            exchange.sendResponseHeaders(200, body.length);
            try (OutputStream out = exchange.getResponseBody()) {
                out.write(body);
            }
        });
        server.start();
    }
}
