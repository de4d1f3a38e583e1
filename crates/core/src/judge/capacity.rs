//! Whether a service that is not slow has anything left: a resource that is full makes the next request wait.
use crate::judge::facts::Facts;
use crate::judge::facts::requests::ServiceFact;
use crate::judge::words;
use crate::stats::ratio;
use crate::units;

/// Share from which on a resource is full.
const FULL: f64 = 0.90;
/// Share of the requests' time in a queue from which on busy workers hold others up.
const QUEUED: f64 = 0.30;

/// The resource that is full, and what the next step of capacity would be, in a sentence; None when none is, or when there is no
/// account of requests that says that nothing is slow.
pub fn full(facts: &Facts<'_>) -> Option<String> {
    let service =
        facts.requests.counted().filter(|s| s.rec.requests > 0).max_by(|a, b| a.time_ns.total_cmp(&b.time_ns))?;
    let about = |text| words::about(facts.capture.slices.count > 1, text);
    let rate = about(units::count_f(ratio(service.rec.requests as f64, service.rec.observed_ns as f64 / 1e9)));
    let what = quota(facts).or_else(|| thread(facts)).or_else(|| cpus(facts)).or_else(|| workers(service))?;
    Some(format!(
        "At {} of {} nothing is slow, and {what}",
        units::requests_per_s(&rate),
        about(units::duration(service.typical_ns()))
    ))
}

fn quota(facts: &Facts<'_>) -> Option<String> {
    let capture = facts.capture;
    let served: f64 =
        facts.threads.iter().filter(|t| facts.requests.covers(t.rec.pid)).map(|t| t.rec.cpu_ns as f64).sum();
    let used = |quota_us: u64, period_us: u64| {
        ratio(served, ratio(quota_us as f64, period_us as f64) * capture.window_ns as f64)
    };
    let full = capture.cgroups.iter().find(|g| g.quota_us.is_some_and(|q| used(q, g.period_us) >= FULL))?;
    Some(format!(
        "control group {} has used up its CPU quota ({} of {} periods throttled): a larger quota is the next step.",
        full.path,
        units::count(full.throttled_periods),
        units::count(full.periods)
    ))
}

fn thread(facts: &Facts<'_>) -> Option<String> {
    let busy = |cpu: f64, wall: f64| ratio(cpu, wall).min(1.0);
    let served = facts.threads.iter().filter(|t| facts.requests.covers(t.rec.pid));
    let busiest = served.max_by(|a, b| a.ledger.on_cpu().total_cmp(&b.ledger.on_cpu()))?;
    let share = busy(busiest.ledger.on_cpu(), busiest.ledger.wall_ns);
    (share >= FULL).then(|| {
        format!(
            "thread {} ({}) is full: on a CPU for {} of the time. Another thread or process that serves is the next step.",
            busiest.rec.tid,
            busiest.rec.comm,
            units::percent(share)
        )
    })
}

fn cpus(facts: &Facts<'_>) -> Option<String> {
    let host = &facts.capture.host;
    let all = facts.capture.window_ns as f64 * f64::from(host.cpus.max(1));
    let share = ratio(host.busy_ns? as f64, all).min(1.0);
    // CPUs that others fill are no step of this service's capacity.
    (share >= FULL && facts.cpu_ns() >= 0.5 * all).then(|| {
        format!(
            "{} full: {} busy. More CPUs, or less beside this service, are the next step.",
            if host.cpus == 1 {
                "the only CPU is".to_owned()
            } else {
                format!("all {} are", units::plural(u64::from(host.cpus), "CPU", "CPUs"))
            },
            units::percent(share)
        )
    })
}

fn workers(service: &ServiceFact<'_>) -> Option<String> {
    let in_queue = service.parts.iter().filter(|p| p.rec.hops.first().is_some_and(|h| h.kind.is_queue()));
    let queued: f64 = in_queue.map(|p| p.ns).sum();
    let workers = f64::from(service.rec.workers);
    let worked = ratio(service.rec.worked_ns as f64, service.rec.observed_ns as f64);
    (workers >= 1.0 && worked >= FULL * workers && ratio(queued, service.time_ns) >= QUEUED).then(|| {
        format!(
            "all {} are in a request while others wait: more workers are the next step.",
            units::plural(u64::from(service.rec.workers), "worker", "workers")
        )
    })
}
