//! The macro that makes a struct of the model and the rows of its settings from one table.

/// The path of a field: `place!(subject [limits] rate)` is `subject.limits.rate`.
macro_rules! place {
    ($subject:ident [] $field:ident) => {
        $subject.$field
    };
    ($subject:ident [$group:ident] $field:ident) => {
        $subject.$group.$field
    };
}

/// A struct of the model and the rows of its settings.
macro_rules! settings {
    (
        $(#[$meta:meta])*
        $Struct:ident ($($argument:ident: $Argument:ty),*) {
            $( $(#[$doc:meta])* $fixed:ident: $Fixed:ty = $init:expr, )*
        }
        $ROWS:ident of $Subject:ident $group:tt, $section:ident {
            $( $(#[$note:meta])* $key:literal $field:ident: $T:ty = $default:expr, $example:literal, $help:literal, $read:expr
                $(, $more:ident: $value:expr)*; )*
        }
    ) => {
        $(#[$meta])*
        pub struct $Struct {
            $( $(#[$doc])* pub $fixed: $Fixed, )*
            $( #[doc = $help] $(#[$note])* pub $field: $T, )*
        }

        impl $Struct {
            /// Every setting at its default.
            pub fn new($($argument: $Argument),*) -> Self {
                Self { $($fixed: $init,)* $($field: $default,)* }
            }
        }

        static $ROWS: &[Row<$Subject>] = &[$(Row {
            key: $key,
            example: $example,
            help: $help,
            field: &Typed::<$Subject, $T> {
                read: $read,
                get: |subject| &place!(subject $group $field),
                get_mut: |subject| &mut place!(subject $group $field),
            },
            more: More { $($more: $value,)* ..More::of(Section::$section) },
        }),*];
    };
}

pub(super) use {place, settings};
