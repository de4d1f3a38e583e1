//! Validates the flags of `parshall relay` and makes a request from them.
use parshall_core::relay::config::row::{Row, Set};
use parshall_core::relay::config::{
    AccessRule, At, Draft, Global, Listener, Protocol, Setting, TargetSpec, access_list, address, quick,
};

use parshall_core::values::ValueError;

use super::args::{ListenerArgs, Networks, RelayArgs, RelayCommand, RunArgs};
use super::setting_flags::SettingFlags;
use crate::request::{RelayRequest, Source};
use parshall_host::error::UserError;

impl RelayArgs {
    /// The request, or the first error.
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
            protocol: if self.listener.udp { Protocol::Udp } else { Protocol::Tcp },
            listen: specs.into_iter().map(unplaced).collect(),
            targets,
            settings: settings(self.listener, self.listener_settings)?.into_iter().map(unplaced).collect(),
        };
        let config = quick(global(self.process_settings)?, draft)?;
        Ok(Source::Given(Box::new(config)))
    }
}

/// The settings of the listener.
fn settings(listener: ListenerArgs, flags: SettingFlags<Listener>) -> Result<Vec<Setting>, UserError> {
    let rules = |networks: Vec<Networks>, allow| -> Vec<AccessRule> {
        networks.into_iter().flatten().map(|network| AccessRule { allow, network }).collect()
    };
    let access = access_list(&rules(listener.allow, true), &rules(listener.deny, false))?;
    let mut settings = Vec::new();
    for (row, texts) in flags.given {
        settings.push(Setting { row, set: set(row, &texts)? });
    }
    if !access.is_empty() {
        settings.push(Setting::new("access", move |l| l.access.clone_from(&access)));
    }
    Ok(settings)
}

fn global(flags: SettingFlags<Global>) -> Result<Global, UserError> {
    let mut global = Global::default();
    for (row, texts) in flags.given {
        set(row, &texts)?(&mut global);
    }
    Ok(global)
}

fn set<S: 'static>(row: &Row<S>, texts: &[String]) -> Result<Set<S>, ValueError> {
    row.field.parse(&texts.iter().map(String::as_str).collect::<Vec<_>>())
}

/// A value without a position, which a command line does not have.
fn unplaced<T>(value: T) -> At<T> {
    At::new(value, 0)
}

/// The error for a wrong first argument, which may be a file without `-c`, or a misspelt subcommand.
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
