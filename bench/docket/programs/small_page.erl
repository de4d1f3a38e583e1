%% A small HTTP service on Erlang processes, one for each connection: erl -noshell -s small_page start 8080.
-module(small_page).
-export([start/1]).

start([Port]) ->
    spawn(fun() -> listen(list_to_integer(atom_to_list(Port))) end).

listen(Port) ->
    {ok, L} = gen_tcp:listen(Port,
        [binary, {packet, http_bin}, {active, false}, {nodelay, true}, {reuseaddr, true}, {backlog, 1024}]),
    accept(L).

accept(L) ->
    {ok, S} = gen_tcp:accept(L),
    gen_tcp:controlling_process(S, spawn(fun() -> serve(S) end)),
    accept(L).

serve(S) ->
    case gen_tcp:recv(S, 0) of
        {ok, http_eoh} ->
            ok = gen_tcp:send(S, [<<"HTTP/1.1 200 OK\r\nContent-Length: 200\r\n\r\n">>, binary:copy(<<"x">>, 200)]),
            serve(S);
        {ok, _} -> serve(S);
        {error, _} -> gen_tcp:close(S)
    end.
