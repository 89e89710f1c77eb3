//! One row of the table (src/ops.rs) becomes a function and a module of the op's name: the function
//! takes what a call must have, and the module's `Call` has a method for everything else.

macro_rules! parameter {
    (read) => { &'a crate::View<'_> };
    (out) => { &'a mut crate::ViewMut<'_> };
    (read_list) => { &'a [crate::View<'_>] };
    (out_list) => { &'a mut [crate::ViewMut<'_>] };
    (int) => { i64 };
    (float) => { f64 };
    (flag) => { bool };
}

macro_rules! setter {
    ($index:literal choice $name:ident $labels:ident $doc:literal) => {
        #[doc = $doc]
        #[must_use = "nothing is done until run()"]
        pub fn $name(mut self, value: $labels) -> Self {
            self.0.set($index, value.label());
            self
        }
    };
    ($index:literal $kind:ident $name:ident $doc:literal) => {
        #[doc = $doc]
        #[must_use = "nothing is done until run()"]
        pub fn $name(mut self, value: parameter!($kind)) -> Self {
            self.0.set($index, value);
            self
        }
    };
}

macro_rules! labels {
    ($labels:ident $doc:literal $($variant:ident $label:literal)*) => {
        #[doc = $doc]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $labels { $($variant),* }

        impl $labels {
            pub(super) fn label(self) -> &'static CStr {
                match self { $($labels::$variant => $label),* }
            }
        }
    };
}

macro_rules! op {
    ($name:ident $doc:literal $count:literal
     $(must $index:literal $kind:ident $arg:ident $arg_doc:literal;)*
     $(may $may_index:literal $may_kind:ident $may:ident
       $($labels:ident { $($variant:ident $label:literal,)* })? $may_doc:literal;)*) => {
        #[doc = $doc]
        ///
        $(#[doc = concat!("- `", stringify!($arg), "`: ", $arg_doc)])*
        #[allow(clippy::too_many_arguments)]
        pub fn $name<'a>($($arg: crate::op_macro::parameter!($kind)),*) -> $name::Call<'a> {
            let mut arguments = crate::call::Arguments::new(&$name::OP);
            $(arguments.set($index, $arg);)*
            $name::Call(arguments)
        }

        #[doc = concat!("What a call of [`", stringify!($name), "`](fn@", stringify!($name),
            ") may have, and its choices.")]
        pub mod $name {
            #[allow(unused_imports)]
            use crate::{call::{Arguments, Run}, error::Result};
            #[allow(unused_imports)]
            use crate::op_macro::{labels, parameter, setter};
            use crate::library::OpHandle;
            use std::ffi::CStr;

            const NAME: &CStr = match CStr::from_bytes_with_nul(
                concat!(stringify!($name), "\0").as_bytes(),
            ) {
                Ok(name) => name,
                Err(_) => panic!("a name has one zero byte, its last"),
            };
            pub(super) static OP: OpHandle = OpHandle::new(NAME);

            /// A call that has not been made.
            #[must_use = "nothing is done until run()"]
            pub struct Call<'a>(pub(super) Arguments<'a, $count>);

            impl<'a> Call<'a> {
                $(setter!($may_index $may_kind $may $($labels)? $may_doc);)*

                /// Makes the call.
                pub fn run(self) -> Result<()> {
                    self.0.run(Run::default())
                }

                /// Makes the call on a stream, in a workspace, by a given implementation.
                pub fn run_with(self, how: Run<'_>) -> Result<()> {
                    self.0.run(how)
                }

                /// The implementation that would run, and the bytes of workspace that it wants.
                pub fn choose(&self, how: Run<'_>) -> Result<(&'static str, usize)> {
                    self.0.choose(how)
                }

                /// Every implementation's verdict on this call: a list of objects with `id`,
                /// `takes_it`, `reason` and `plan`, the one that would run first.
                pub fn why(&self) -> Result<serde_json::Value> {
                    self.0.why()
                }

                /// The definition of right, on a CPU. Outputs that the contract bounds are given as
                /// f64 and get the exact value or, on request, the sum of magnitudes that their
                /// bound counts with.
                pub fn reference(self, sum_magnitudes: bool) -> Result<()> {
                    self.0.reference(sum_magnitudes)
                }
            }

            $($(labels!($labels $may_doc $($variant $label)*);)?)*
        }
    };
}

pub(crate) use {labels, op, parameter, setter};
