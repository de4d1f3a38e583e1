import com.sun.net.httpserver.HttpServer;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.util.concurrent.Executors;
import org.apache.http.client.methods.CloseableHttpResponse;
import org.apache.http.client.methods.HttpGet;
import org.apache.http.impl.client.CloseableHttpClient;
import org.apache.http.impl.client.HttpClients;
import org.apache.http.impl.conn.PoolingHttpClientConnectionManager;
import org.apache.http.util.EntityUtils;

/**
 * A service that asks another one with Apache's HttpClient in each request. `java -cp ... Desk.java PORT URL CONNECTIONS`, where 0
 * leaves the number of connections to a host as the library has it.
 */
public class Desk {
    public static void main(String[] arguments) throws Exception {
        PoolingHttpClientConnectionManager pool = new PoolingHttpClientConnectionManager();
        int connections = Integer.parseInt(arguments[2]);
        if (connections > 0) {
            pool.setMaxTotal(connections);
            pool.setDefaultMaxPerRoute(connections);
        }
        CloseableHttpClient client = HttpClients.custom().setConnectionManager(pool).build();
        HttpServer server = HttpServer.create(new InetSocketAddress(Integer.parseInt(arguments[0])), 1024);
        server.setExecutor(Executors.newFixedThreadPool(48));
        server.createContext("/", exchange -> {
            byte[] body = "asked\n".getBytes();
            int status = 200;
            try (CloseableHttpResponse reply = client.execute(new HttpGet(arguments[1]))) {
                EntityUtils.consume(reply.getEntity());
            } catch (Exception e) {
                e.printStackTrace();
                status = 500;
            }
            exchange.sendResponseHeaders(status, body.length);
            try (OutputStream out = exchange.getResponseBody()) {
                out.write(body);
            }
        });
        server.start();
    }
}
