// A web service whose handlers block: Quotes.exe PORT LEAST. Each request runs on the thread pool of the runtime and waits 200 ms for
// a rate of a partner at 127.0.0.1:8000. LEAST is the number of threads that the pool makes without hesitation; 0 keeps the default.
using System;
using System.IO;
using System.Net;
using System.Net.Sockets;
using System.Text;
using System.Threading;

class Quotes
{
    static string Ask()
    {
        using (var client = new TcpClient("127.0.0.1", 8000))
        {
            var stream = client.GetStream();
            var question = Encoding.ASCII.GetBytes("GET / HTTP/1.0\r\n\r\n");
            stream.Write(question, 0, question.Length);
            return new StreamReader(stream).ReadToEnd();
        }
    }

    static void Serve(object state)
    {
        var socket = (Socket)state;
        try
        {
            var buffer = new byte[4096];
            socket.NoDelay = true;
            socket.Receive(buffer);
            var body = "rate: " + Ask().Length + "\n";
            var head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: " + body.Length + "\r\n\r\n";
            socket.Send(Encoding.ASCII.GetBytes(head + body));
        }
        catch (SocketException) { }
        catch (IOException) { }
        socket.Close();
    }

    static void Main(string[] args)
    {
        int least = int.Parse(args[1]);
        if (least > 0) ThreadPool.SetMinThreads(least, least);
        var listener = new Socket(AddressFamily.InterNetwork, SocketType.Stream, ProtocolType.Tcp);
        listener.SetSocketOption(SocketOptionLevel.Socket, SocketOptionName.ReuseAddress, true);
        listener.Bind(new IPEndPoint(IPAddress.Any, int.Parse(args[0])));
        listener.Listen(200);
        while (true) ThreadPool.QueueUserWorkItem(Serve, listener.Accept());
    }
}
