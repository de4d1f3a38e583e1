import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import javax.servlet.http.HttpServlet;
import javax.servlet.http.HttpServletRequest;
import javax.servlet.http.HttpServletResponse;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;
import org.eclipse.jetty.servlet.ServletContextHandler;
import org.eclipse.jetty.servlet.ServletHolder;
import org.eclipse.jetty.util.thread.QueuedThreadPool;

/**
 * A servlet in Jetty. `java -cp ... Pages.java PORT MIN-THREADS MAX-THREADS [URL]`; with a URL each page waits for a report of that
 * service in the thread of the request.
 */
public class Pages {
    public static class Page extends HttpServlet {
        static final HttpClient CLIENT = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        static URI report;

        @Override
        protected void doGet(HttpServletRequest request, HttpServletResponse reply) throws IOException {
            String text = "a page\n";
            if (report != null) {
                try {
                    text = CLIENT.send(HttpRequest.newBuilder(report).build(), HttpResponse.BodyHandlers.ofString()).body();
                } catch (InterruptedException e) {
                    Thread.currentThread().interrupt();
                }
            }
            reply.setContentLength(text.length());
            reply.getWriter().write(text);
        }
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments.length > 3) Page.report = URI.create(arguments[3]);
        QueuedThreadPool pool = new QueuedThreadPool(Integer.parseInt(arguments[2]), Integer.parseInt(arguments[1]));
        pool.setReservedThreads(0);
        Server server = new Server(pool);
        ServerConnector connector = new ServerConnector(server, 1, 1);
        connector.setPort(Integer.parseInt(arguments[0]));
        server.addConnector(connector);
        ServletContextHandler context = new ServletContextHandler();
        context.addServlet(new ServletHolder(new Page()), "/*");
        server.setHandler(context);
        server.start();
        server.join();
    }
}
