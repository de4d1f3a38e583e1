# A Rack application for puma. DOCKET_JOB=thread runs a job that computes in a thread of the web server, as job queues do in their
# asynchronous mode.
if ENV["DOCKET_JOB"] == "thread"
  Thread.new do
    loop { (1..20_000).map { |i| [i.to_s.hash, i] }.sort.first(10).to_h }
  end
end

# A page reads a few files: each read lets other threads run, and must then get the interpreter's lock back.
run lambda { |_env|
  5.times { File.read("/proc/self/stat") }
  [200, { "content-type" => "text/plain", "content-length" => "200" }, ["x" * 200]]
}
