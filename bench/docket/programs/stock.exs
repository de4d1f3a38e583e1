# A shop's stock service: stock.exs PORT MODE. Each connection has its process. A page asks the shelf, which asks the warehouse at
# 127.0.0.1:8000. In mode "one" one GenServer asks for all; in mode "each" the connection's process asks itself.
defmodule Warehouse do
  def ask(item) do
    {:ok, s} = :gen_tcp.connect({127, 0, 0, 1}, 8000, [:binary, active: false, nodelay: true])
    :ok = :gen_tcp.send(s, "GET /#{item} HTTP/1.0\r\n\r\n")
    reply = read(s, "")
    :gen_tcp.close(s)
    byte_size(reply)
  end

  defp read(s, acc) do
    case :gen_tcp.recv(s, 0) do
      {:ok, data} -> read(s, acc <> data)
      {:error, :closed} -> acc
    end
  end
end

defmodule Shelf do
  use GenServer
  def init(state), do: {:ok, state}
  def handle_call({:count, item}, _from, state), do: {:reply, Warehouse.ask(item), state}
end

defmodule Web do
  def accept(listener, mode) do
    {:ok, socket} = :gen_tcp.accept(listener)
    pid = spawn(fn -> receive do :go -> serve(socket, mode) end end)
    :ok = :gen_tcp.controlling_process(socket, pid)
    send(pid, :go)
    accept(listener, mode)
  end

  defp serve(socket, mode) do
    case request(socket, nil) do
      nil ->
        :gen_tcp.close(socket)

      path ->
        count = if mode == "one", do: GenServer.call(Shelf, {:count, path}, 60_000), else: Warehouse.ask(path)
        body = "in stock: #{count}\n"
        :gen_tcp.send(socket, "HTTP/1.1 200 OK\r\nContent-Length: #{byte_size(body)}\r\n\r\n" <> body)
        serve(socket, mode)
    end
  end

  defp request(socket, path) do
    case :gen_tcp.recv(socket, 0) do
      {:ok, {:http_request, _, {:abs_path, p}, _}} -> request(socket, p)
      {:ok, :http_eoh} -> path
      {:ok, _} -> request(socket, path)
      {:error, _} -> nil
    end
  end
end

[port, mode] = System.argv()
{:ok, _} = GenServer.start_link(Shelf, nil, name: Shelf)

{:ok, listener} =
  :gen_tcp.listen(String.to_integer(port), [:binary, packet: :http_bin, active: false, reuseaddr: true, nodelay: true, backlog: 128])

Web.accept(listener, mode)
