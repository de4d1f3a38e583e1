import com.sun.net.httpserver.HttpServer;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.util.concurrent.Executors;
import org.apache.log4j.Logger;
import org.apache.log4j.PropertyConfigurator;

/** A service that logs each request through log4j. `java -cp ... Audit.java PORT LOG4J.PROPERTIES` */
public class Audit {
    static final Logger LOG = Logger.getLogger(Audit.class);

    public static void main(String[] arguments) throws Exception {
        PropertyConfigurator.configure(arguments[1]);
        HttpServer server = HttpServer.create(new InetSocketAddress(Integer.parseInt(arguments[0])), 1024);
        server.setExecutor(Executors.newFixedThreadPool(24));
        String detail = "x".repeat(400);
        server.createContext("/", exchange -> {
            LOG.info("request " + exchange.getRemoteAddress() + " " + exchange.getRequestURI() + " " + detail);
            byte[] body = "ok\n".getBytes();
            exchange.sendResponseHeaders(200, body.length);
            try (OutputStream out = exchange.getResponseBody()) {
                out.write(body);
            }
        });
        server.start();
    }
}
