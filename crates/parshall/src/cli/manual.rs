//! Man pages and completions, made of the declared commands. Both are printed: packages contain what the binary in them printed.
use clap::{ArgMatches, Args, Command, FromArgMatches};
use clap_complete::aot::{Shell, generate};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use parshall_host::error::UserError;

/// Print the completions of a shell
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  parshall completions bash >/etc/bash_completion.d/parshall
  parshall completions fish >~/.config/fish/completions/parshall.fish")]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Print the man page of a command
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  parshall manual attach | man -l -  read the page of a command
  parshall manual --list             the commands that have pages")]
pub struct ManualArgs {
    /// The command; without it that of parshall itself
    #[arg(value_name = "COMMAND")]
    command: Vec<String>,
    /// Print the commands that have pages, one per line
    #[arg(long, conflicts_with = "command")]
    list: bool,
}

/// The command line with the commands of this file. They are hidden: who needs them follows docs/install.md.
pub fn with_commands(declared: Command) -> Command {
    let completions = CompletionsArgs::augment_args(Command::new("completions").hide(true));
    declared.subcommand(completions).subcommand(ManualArgs::augment_args(Command::new("manual").hide(true)))
}

/// The output of a command of this file; None when the arguments are those of another. `declared` is the command line without them.
pub fn asked_for(matches: &ArgMatches, declared: impl FnOnce() -> Command) -> Option<Result<String, UserError>> {
    const ACCEPTED: &str = "clap has accepted the arguments";
    match matches.subcommand()? {
        ("completions", of) => {
            Some(Ok(completions(&CompletionsArgs::from_arg_matches(of).expect(ACCEPTED), declared())))
        }
        ("manual", of) => Some(manual(&ManualArgs::from_arg_matches(of).expect(ACCEPTED), declared())),
        _ => None,
    }
}

fn completions(args: &CompletionsArgs, mut declared: Command) -> String {
    let mut text = Vec::new();
    generate(args.shell, &mut declared, "parshall", &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

fn manual(args: &ManualArgs, declared: Command) -> Result<String, UserError> {
    let pages = pages(declared);
    if args.list {
        return Ok(pages.iter().map(|page| format!("{}\n", page.words)).collect());
    }
    let words = ["parshall"].into_iter().chain(args.command.iter().map(String::as_str)).collect::<Vec<_>>().join(" ");
    let found = pages.into_iter().find(|page| page.words == words);
    found.map(|page| page.text).ok_or_else(|| {
        UserError::new(format!("`{words}` is not a command"), "`parshall manual --list` lists those that have pages")
    })
}

/// The man page of a command.
struct Page {
    /// How the command is typed, `parshall lab run`.
    words: String,
    text: String,
}

/// The pages of all commands, each before those of its subcommands.
fn pages(mut declared: Command) -> Vec<Page> {
    // From here on each command knows its whole name.
    declared.build();
    let mut pages = Vec::new();
    let mut left = vec![declared];
    while let Some(command) = left.pop() {
        pages.push(page(&command));
        let mut below: Vec<_> = command.get_subcommands().filter(|c| !c.is_hide_set()).cloned().collect();
        below.reverse();
        left.append(&mut below);
    }
    pages
}

fn page(command: &Command) -> Page {
    let words = command.get_bin_name().unwrap_or(command.get_name()).to_owned();
    let man = Man::new(command.clone()).source(concat!("parshall ", env!("CARGO_PKG_VERSION"))).manual("parshall");
    let mut text = Vec::new();
    let written = man
        .render_title(&mut text)
        .and_then(|()| man.render_name_section(&mut text))
        .and_then(|()| man.render_synopsis_section(&mut text))
        .and_then(|()| if has_options(command) { man.render_options_section(&mut text) } else { Ok(()) })
        .and_then(|()| if command.has_subcommands() { man.render_subcommands_section(&mut text) } else { Ok(()) })
        .and_then(|()| closing(command).to_writer(&mut text));
    written.expect("a vector takes any text");
    Page { words, text: String::from_utf8_lossy(&text).into_owned() }
}

fn has_options(command: &Command) -> bool {
    command.get_arguments().any(|arg| !arg.is_hide_set())
}

/// The help beside commands and options: lists with a heading, such as the examples, and sentences. clap_mangen would
/// make one paragraph of all.
fn closing(command: &Command) -> Roff {
    let mut roff = Roff::new();
    let parts = [command.get_before_help(), command.get_after_help()].into_iter().flatten();
    let text = parts.map(ToString::to_string).collect::<Vec<_>>().join("\n\n");
    let mut place = Place::Outside;
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let heads_list = lines.peek().is_some_and(|next| next.starts_with("  "));
        match line.strip_suffix(':').filter(|_| heads_list && !line.starts_with(' ')) {
            Some(title) => {
                if matches!(place, Place::List) {
                    roff.control("fi", []);
                }
                roff.control("SH", [title.to_uppercase().as_str()]).control("nf", []);
                place = Place::List;
            }
            None if line.trim().is_empty() => match place {
                Place::Sentences => place = Place::Between,
                Place::List => {
                    roff.control("fi", []);
                    place = Place::Outside;
                }
                Place::Outside | Place::Between => {}
            },
            None => {
                match place {
                    Place::Outside => {
                        roff.control("SH", ["NOTES"]);
                        place = Place::Sentences;
                    }
                    Place::Between => {
                        roff.control("PP", []);
                        place = Place::Sentences;
                    }
                    Place::List | Place::Sentences => {}
                }
                roff.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
            }
        }
    }
    if matches!(place, Place::List) {
        roff.control("fi", []);
    }
    roff
}

/// The place of a line in the text below the options.
#[derive(Clone, Copy)]
enum Place {
    /// At the begin, or after a list.
    Outside,
    /// Below a heading; its lines are kept as they are.
    List,
    Sentences,
    /// After an empty line that follows sentences.
    Between,
}

#[cfg(test)]
mod tests {
    use super::super::{Invocation, command, parse};
    use super::*;

    /// The titles of a page's sections, with the text of each.
    fn sections(page: &str) -> Vec<(String, String)> {
        let parts = page.split("\n.SH ").skip(1).map(|part| part.split_once('\n').unwrap_or((part, "")));
        parts.map(|(title, text)| (title.trim_matches('"').to_owned(), text.to_owned())).collect()
    }

    /// How each command is typed, but for hidden ones.
    fn commands(here: &Command, before: &str) -> Vec<String> {
        let words = format!("{before}{}", here.get_name());
        let below = here.get_subcommands().filter(|c| !c.is_hide_set());
        let below: Vec<_> = below.flat_map(|c| commands(c, &format!("{words} "))).collect();
        [words].into_iter().chain(below).collect()
    }

    #[test]
    fn every_command_has_its_page_and_no_page_has_an_empty_section() {
        let pages = pages(command());
        assert_eq!(pages.iter().map(|page| page.words.clone()).collect::<Vec<_>>(), commands(&command(), ""));
        for Page { words, text } in &pages {
            let sections = sections(text);
            let titles: Vec<_> = sections.iter().map(|(title, _)| title.as_str()).collect();
            for wanted in ["NAME", "SYNOPSIS", "EXAMPLES"] {
                assert_eq!(titles.iter().filter(|title| **title == wanted).count(), 1, "{words}: {titles:?}");
            }
            for (title, section) in &sections {
                let lines = section.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('.'));
                assert!(lines.count() > 0, "{words}: {title} is empty");
            }
            let name = &sections[0].1;
            let heading = format!("{} \\- ", words.replace([' ', '-'], "\\-"));
            assert!(name.starts_with(&heading), "{words}: {name:?} is not {heading:?} and what it does");
            assert!(!text.contains('\u{a0}'), "{words} has spaces that are not plain");
            assert_eq!(text.matches("\n.nf").count(), text.matches("\n.fi").count(), "{words} ends no list");
        }
    }

    #[test]
    fn examples_stay_lines_and_sentences_are_a_section_of_their_own() {
        let declared = Command::new("tool").about("Does it").after_help(
            "Changes:\n  one  the first\nExamples:\n  tool one    as typed\n\nIt ends.\nAlways.\n\nExit codes: 0, 1.",
        );
        let text = closing(&declared).to_roff();
        let lists = ".SH CHANGES\n.nf\none  the first\n.fi\n.SH EXAMPLES\n.nf\ntool one    as typed\n.fi\n";
        let sentences = ".SH NOTES\nIt ends.\nAlways.\n.PP\nExit codes: 0, 1.\n";
        assert_eq!(text, format!("{lists}{sentences}"));
        let declared = Command::new("tool").after_help("Examples:\n  tool");
        assert_eq!(closing(&declared).to_roff(), ".SH EXAMPLES\n.nf\ntool\n.fi\n");
    }

    #[test]
    fn completions_of_each_shell_know_the_commands() {
        for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
            let Ok(Invocation::Print(text)) = parse(["parshall", "completions", shell]) else {
                panic!("{shell}: nothing was printed");
            };
            for word in ["attach", "doctor", "port"] {
                assert!(text.contains(word), "{shell} lacks {word}");
            }
            assert!(!text.contains("manual"), "{shell} offers a hidden command");
        }
    }

    #[test]
    fn a_page_is_printed_for_words_that_are_a_command_and_refused_for_others() {
        let Ok(Invocation::Print(text)) = parse(["parshall", "manual", "doctor"]) else {
            panic!("nothing was printed");
        };
        assert!(text.contains("parshall\\-doctor"), "{text}");
        let error = parse(["parshall", "manual", "doktor"]).unwrap_err();
        assert_eq!(error.what, "`parshall doktor` is not a command");
    }
}
