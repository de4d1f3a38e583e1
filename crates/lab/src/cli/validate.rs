//! Arguments checked and made requests of.
use std::path::Path;

use parshall_core::report::Detail;
use parshall_core::units;
use parshall_diagnose::cli::different_files;
use parshall_host::error::UserError;

use super::args::{AbArgs, Command, ExperimentArgs, LabArgs, RunArgs, WireArgs};
use crate::recipe::{Wire, WireKind};
use crate::request::{
    CompareRequest, ExperimentRequest, LabRequest, ListRequest, RunRequest, Source, TestbedRequest, WireRequest,
};

impl LabArgs {
    /// Fails for a wire that cannot be made. Names of cases are looked up when they are run.
    pub fn validate(self) -> Result<LabRequest, UserError> {
        Ok(match self.command {
            Command::List(args) => LabRequest::List(ListRequest { format: args.format }),
            Command::Run(args) => LabRequest::Run(args.validate()?),
            Command::Ab(args) => LabRequest::Ab(args.validate()?),
            Command::Sweep(mut args) => {
                let source =
                    args.experiment.source("`parshall lab sweep rcvbuf.toml`; docs/lab.md describes the file")?;
                LabRequest::Sweep(args.experiment.request(source, args.passes))
            }
            Command::Compare(args) => {
                LabRequest::Compare(CompareRequest { before: args.before, after: args.after, format: args.format })
            }
            Command::Load(args) => LabRequest::Load(args),
            Command::Testbed(args) => LabRequest::Testbed(TestbedRequest {
                file: args.file,
                check: args.check,
                show_as_shell: args.show_as_shell,
                time: args.time,
            }),
            Command::Wire(args) => LabRequest::Wire(args.validate()?),
        })
    }
}

impl RunArgs {
    fn validate(self) -> Result<RunRequest, UserError> {
        let beside = self.beside.files();
        let mut files: Vec<(&str, &Path)> = beside.iter().map(|(what, path)| (what.option(), path.as_path())).collect();
        files.extend(self.save.iter().map(|path| ("--save", path.as_path())));
        different_files(files)?;
        Ok(RunRequest {
            names: self.names,
            window: self.window,
            runs: self.runs,
            format: self.format,
            save: self.save,
            beside,
            mask: self.mask,
            rung: self.rung,
            blocks: self.blocks,
            detail: if self.full { Detail::Full } else { Detail::Short },
            check: self.check,
        })
    }
}

impl AbArgs {
    fn validate(mut self) -> Result<ExperimentRequest, UserError> {
        let example = "`parshall lab ab -- 'COMMAND' 'COMMAND'` or `parshall lab ab FILE`";
        let given = self.commands.len();
        let source = match <[String; 2]>::try_from(self.commands) {
            Ok(commands) if commands.iter().any(|command| command.trim().is_empty()) => {
                return Err(UserError::new("one of the commands is empty", format!("write {example}")));
            }
            Ok(commands) => Source::Commands(commands),
            Err(_) if given == 0 => self.experiment.source(example)?,
            Err(_) => {
                let what = format!("{} behind `--`", units::plural(given as u64, "command", "commands"));
                let hint = format!("give two, each as one word in quotes: {example}");
                return Err(UserError::new(what, hint));
            }
        };
        Ok(ExperimentRequest { duet: self.duet, ..self.experiment.request(source, self.blocks) })
    }
}

impl ExperimentArgs {
    fn source(&mut self, example: &str) -> Result<Source, UserError> {
        let missing = || UserError::new("no experiment is given", format!("write {example}"));
        self.file.take().map(Source::File).ok_or_else(missing)
    }

    fn request(self, source: Source, most: Option<u32>) -> ExperimentRequest {
        let Self { file: _, check, results, resume, format, pictures, html } = self;
        ExperimentRequest { source, check, most, results, resume, duet: false, format, pictures, html }
    }
}

impl WireArgs {
    fn validate(self) -> Result<WireRequest, UserError> {
        let in_range = (0.0..=100.0).contains(&self.loss_percent) && (0.0..=10_000.0).contains(&self.delay_ms);
        if !in_range || self.kind == WireKind::Loopback {
            let hint = "use veth or delay, --loss-percent 0 to 100, --delay-ms 0 to 10000";
            return Err(UserError::new("no wire can be made like that", hint));
        }
        if self.delay_ms > 0.0 && self.kind != WireKind::Delay {
            return Err(UserError::new("a veth pair has no delay", "use: parshall lab wire delay --delay-ms ..."));
        }
        let (kind, loss_percent, delay_ms) = (self.kind, self.loss_percent, self.delay_ms);
        Ok(WireRequest { wire: Wire { kind, loss_percent, delay_ms, ..Wire::default() }, time: self.time })
    }
}
