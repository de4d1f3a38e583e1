#!/usr/bin/perl
# A service on Mojolicious that asks a rates service in each request: rates.pl PORT PARTNER-PORT HOW. HOW is "blocking" or "promise".
use Mojolicious::Lite -signatures;
use Mojo::Server::Daemon;

my ($port, $partner, $how) = @ARGV;
my $url = "http://127.0.0.1:$partner/rate";
app->log->level('error');
get '/' => sub ($c) {
    if ($how eq 'blocking') {
        $c->ua->get($url)->result;
        return $c->render(text => "rate 1.25\n");
    }
    $c->render_later;
    $c->ua->get_p($url)->then(sub ($tx) { $c->render(text => "rate 1.25\n") });
};
Mojo::Server::Daemon->new(app => app, listen => ["http://127.0.0.1:$port"], silent => 1)->run;
