//! Help texts whose commands can be copied: clap wraps texts at the terminal's width, but never a command in them.

/// Stands for a space at which clap must not break a line; it breaks at plain spaces only.
const HARD_SPACE: &str = "\u{a0}";

/// The command and those below it, with hard spaces in the examples and in what stands between backticks.
pub fn unbroken(command: clap::Command) -> clap::Command {
    let held = |text: Option<&clap::builder::StyledStr>| text.map(|text| hold(&text.to_string()));
    let (about, after) = (held(command.get_about()), held(command.get_after_help()));
    let command = match held(command.get_before_help()) {
        Some(before) => command.before_help(before),
        None => command,
    };
    let command = match about {
        Some(about) => command.about(about),
        None => command,
    };
    let command = match after {
        Some(after) => command.after_help(after),
        None => command,
    };
    let command = command.mut_args(|arg| match held(arg.get_help()) {
        Some(help) => arg.help(help),
        None => arg,
    });
    command.mut_subcommands(unbroken)
}

/// The text that clap has rendered, with plain spaces again.
pub fn rendered(text: &str) -> String {
    text.replace(HARD_SPACE, " ")
}

/// Examples are the indented lines.
fn hold(text: &str) -> String {
    let hold_line = |line: &str| match line.starts_with("  ") {
        true => line.replace(' ', HARD_SPACE),
        false => {
            let parts = line.split('`').enumerate();
            let held = parts.map(|(i, part)| if i % 2 == 1 { part.replace(' ', HARD_SPACE) } else { part.to_owned() });
            held.collect::<Vec<_>>().join("`")
        }
    };
    text.split('\n').map(hold_line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_and_commands_in_backticks_are_held_together() {
        let held = hold("As `ip netns list` names it\n\nExamples:\n  parshall attach --all\nThat is all");
        assert_eq!(held.matches(' ').count(), "As  names it".matches(' ').count() + "That is all".matches(' ').count());
        assert_eq!(rendered(&held), "As `ip netns list` names it\n\nExamples:\n  parshall attach --all\nThat is all");
    }
}
