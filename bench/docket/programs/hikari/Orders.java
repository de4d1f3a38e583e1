import com.sun.net.httpserver.HttpServer;
import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.util.concurrent.Executors;
import java.util.concurrent.ThreadLocalRandom;

/**
 * A shop that asks a payment service inside of a transaction, so that a connection of its pool is taken for that long.
 * `java -cp ... Orders.java PORT JDBC-URL PAYMENT-URL CONNECTIONS`
 */
public class Orders {
    static void order(Connection held, HttpClient client, HttpRequest pay) throws Exception {
        held.setAutoCommit(false);
        try (PreparedStatement take = held.prepareStatement("update account set balance = balance - 1 where id = ?")) {
            take.setInt(1, ThreadLocalRandom.current().nextInt(1, 20001));
            take.executeUpdate();
        }
        client.send(pay, HttpResponse.BodyHandlers.discarding());
        held.commit();
    }

    public static void main(String[] arguments) throws Exception {
        HikariConfig config = new HikariConfig();
        config.setJdbcUrl(arguments[1]);
        config.setMaximumPoolSize(Integer.parseInt(arguments[3]));
        HikariDataSource pool = new HikariDataSource(config);
        HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        HttpRequest pay = HttpRequest.newBuilder(URI.create(arguments[2])).build();
        HttpServer server = HttpServer.create(new InetSocketAddress(Integer.parseInt(arguments[0])), 1024);
        server.setExecutor(Executors.newFixedThreadPool(48));
        server.createContext("/", exchange -> {
            byte[] body = "ordered\n".getBytes();
            int status = 200;
            try (Connection held = pool.getConnection()) {
                order(held, client, pay);
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
