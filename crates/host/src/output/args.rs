//! The output flags that every command has.
use clap::{Args, ValueEnum};

use super::{Destination, Format, Output, style_for};

/// How to print; shared by all commands that print a report.
#[derive(Debug, Args)]
pub struct PrintArgs {
    /// How to print the report
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: FormatArg,
    /// When to colour it
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    color: ColorArg,
}

/// `--format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FormatArg {
    /// For people
    Text,
    /// One JSON document
    Json,
}

/// `--color`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ColorArg {
    /// When stdout is a terminal and NO_COLOR is not set
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

impl ColorArg {
    /// Whether to colour; None where the destination decides.
    pub fn choice(self) -> Option<bool> {
        match self {
            ColorArg::Always => Some(true),
            ColorArg::Never => Some(false),
            ColorArg::Auto => None,
        }
    }
}

impl PrintArgs {
    /// The options for a report on stdout.
    pub fn output(self) -> Output {
        self.output_to(&Destination::Stdout)
    }

    /// The options for a report on a destination.
    pub fn output_to(self, to: &Destination) -> Output {
        let format = match self.format {
            FormatArg::Text => Format::Text,
            FormatArg::Json => Format::Json,
        };
        Output { format, style: style_for(to, self.color.choice()) }
    }
}
