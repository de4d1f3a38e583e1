%% A page of the HTTP server of Erlang/OTP: erl -noshell -eval 'status:start(8080)'.
-module(status).
-export([start/1, do/1]).

start(Port) ->
    ok = inets:start(),
    Dir = os:getenv("DOCKET_DIR"),
    {ok, _} = inets:start(httpd, [
        {port, Port}, {bind_address, {127, 0, 0, 1}}, {server_name, "status"}, {server_root, Dir}, {document_root, Dir},
        {modules, [?MODULE]}]).

do(_Request) ->
    {proceed, [{response, {200, lists:duplicate(200, $x)}}]}.
