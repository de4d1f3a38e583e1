# A web server in Tcl whose pages ask a station: `weather.tcl PORT URL wait|callback`. With `wait` a page calls http::geturl without
# -command, which enters the event loop again until the answer is there.
package require http

proc accept {sock host port} {
    fconfigure $sock -translation crlf -buffering full -blocking 0
    fileevent $sock readable [list line $sock]
}

proc line {sock} {
    if {[gets $sock text] < 0} {
        if {[eof $sock]} {
            close $sock
        }
        return
    }
    if {$text eq ""} {
        page $sock
    }
}

proc page {sock} {
    global mode url
    if {$mode eq "wait"} {
        answer $sock [http::geturl $url]
    } else {
        http::geturl $url -command [list answer $sock]
    }
}

proc answer {sock token} {
    set body [http::data $token]
    http::cleanup $token
    catch {
        puts -nonewline $sock "HTTP/1.1 200 OK\nContent-Length: [string length $body]\n\n$body"
        flush $sock
    }
}

lassign $argv port url mode
socket -server accept -myaddr 127.0.0.1 $port
vwait forever
