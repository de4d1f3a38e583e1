//! The flags of `parshall relay` lowered into a request.
use parshall_core::relay::config::{
    AccessRule, At, Draft, Global, LogTo, Protocol, Setting, TargetSpec, access_list, address, quick,
};

use parshall_core::values::ValueError;

use super::args::{ForwardArgs, IdleTimeout, Networks, ProcessArgs, RelayArgs, RelayCommand, RunArgs};
use crate::request::{RelayRequest, Source};
use parshall_host::error::UserError;

impl RelayArgs {
    /// Checks them.
    pub fn validate(self) -> Result<RelayRequest, UserError> {
        Ok(match self.command {
            Some(RelayCommand::Check(args)) => RelayRequest::Check { path: args.file, output: args.print.output() },
            Some(RelayCommand::Top(args)) => RelayRequest::Top { control: args.control, output: args.print.output() },
            None => RelayRequest::Run(self.run.validate()?),
        })
    }
}

impl RunArgs {
    fn validate(self) -> Result<Source, UserError> {
        if let Some(path) = self.config {
            return Ok(Source::File(path));
        }
        let Some(listen) = self.listen else {
            return Err(UserError::new(
                "what to forward is not given",
                "name where to listen and a target, as in `parshall relay 127.0.0.1:9000 10.0.0.2:9001`, or a file with -c",
            ));
        };
        let specs = address::listen(&listen).map_err(|wrong| not_an_address(&listen, &self.targets, wrong))?;
        if self.targets.is_empty() {
            return Err(UserError::new(
                format!("there is no target for {listen}"),
                format!("name one, as in `parshall relay {listen} 10.0.0.2:9001`"),
            ));
        }
        let target = |text: &String| {
            let spec = address::target(text)?;
            Ok(unplaced(TargetSpec { spec, weight: 1 }))
        };
        let targets = self.targets.iter().map(target).collect::<Result<_, UserError>>()?;
        let draft = Draft {
            name: None,
            protocol: if self.forward.udp { Protocol::Udp } else { Protocol::Tcp },
            listen: specs.into_iter().map(unplaced).collect(),
            targets,
            settings: self.forward.settings()?.into_iter().map(unplaced).collect(),
        };
        let config = quick(self.process.validate(), draft)?;
        Ok(Source::Given(Box::new(config)))
    }
}

impl ForwardArgs {
    fn settings(self) -> Result<Vec<Setting>, UserError> {
        let rules = |networks: Vec<Networks>, allow| -> Vec<AccessRule> {
            networks.into_iter().flatten().map(|network| AccessRule { allow, network }).collect()
        };
        let access = access_list(&rules(self.allow, true), &rules(self.deny, false))?;
        let proxies: Vec<_> = self.proxy_from.into_iter().flatten().collect();
        let given = [
            self.engine.map(Setting::Engine),
            self.buffer.map(Setting::Buffer),
            self.balance.map(Setting::Balance),
            (!access.is_empty()).then_some(Setting::Access(access)),
            self.per_source.map(Setting::PerSource),
            self.rate.map(Setting::Rate),
            self.bandwidth.map(Setting::Bandwidth),
            self.connect_timeout.map(Setting::Connect),
            self.idle_timeout.map(|IdleTimeout(time)| Setting::Idle(time)),
            self.proxy_in.then_some(Setting::ProxyIn(true)),
            (!proxies.is_empty()).then_some(Setting::ProxyFrom(proxies)),
            self.proxy_out.map(|version| Setting::ProxyOut(Some(version))),
            self.transparent.then_some(Setting::Transparent(true)),
            self.source.map(Setting::Source),
        ];
        Ok(given.into_iter().flatten().collect())
    }
}

impl ProcessArgs {
    fn validate(self) -> Global {
        let usual = Global::default();
        Global {
            threads: self.threads,
            max_connections: self.max_connections,
            metrics: self.metrics,
            control: self.control,
            log: self.log.unwrap_or(LogTo::Nowhere),
            user: self.user,
            drain: self.drain.unwrap_or(usual.drain),
        }
    }
}

/// There is no text on a command line to point into.
fn unplaced<T>(value: T) -> At<T> {
    At::new(value, 0)
}

/// The first word may be a file without its `-c`, or a misspelt command.
fn not_an_address(listen: &str, targets: &[String], wrong: ValueError) -> UserError {
    if targets.is_empty() && (listen.contains('/') || listen.contains('.')) && !listen.contains(':') {
        let hint =
            format!("a file goes behind -c, as in `parshall relay -c {listen}`; an address looks like 127.0.0.1:9000");
        return UserError::new(wrong.what, hint);
    }
    if listen.bytes().all(|b| b.is_ascii_alphabetic()) {
        return UserError::new(wrong.what, format!("{}; the commands are `relay check` and `relay top`", wrong.hint));
    }
    wrong.into()
}
