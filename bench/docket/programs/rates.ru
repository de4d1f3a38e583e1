# A page that asks a partner by name, on a new connection as Net::HTTP.get does: http://rates.partner.test:8000/.
require "net/http"

run lambda { |_env|
  rates = Net::HTTP.get(URI("http://rates.partner.test:8000/"))
  body = "rates: #{rates.bytesize}\n"
  [200, { "Content-Type" => "text/plain", "Content-Length" => body.bytesize.to_s }, [body]]
}
